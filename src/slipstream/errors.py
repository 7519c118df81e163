"""What can go wrong for a user: one tree of exceptions, each with what to do about it.

SlipstreamError
├── InputError        an argument or a prompt is out of range            (also a ValueError)
├── ModelError        a model file is missing, damaged or of no use here
│   └── PairError     target and draft do not fit together
├── TemplateError     a chat template cannot be rendered
├── DownloadError     a model cannot be fetched
├── EngineError       another engine cannot be started, failed or answered an error
└── RuntimeLibraryError   the llama.cpp build is missing, of another release, or refused a call
"""


class SlipstreamError(Exception):
    """Base of all errors meant for a person.

    `message` says what is wrong and with which value; `hint` says what to do.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class InputError(SlipstreamError, ValueError):
    """An argument, an option or a prompt that cannot be used."""


class ModelError(SlipstreamError):
    """A model file that is missing, damaged, or that this program cannot use."""


class PairError(ModelError):
    """A draft model that does not fit its target."""


class TemplateError(SlipstreamError):
    """A chat template that is missing or cannot be rendered."""


class DownloadError(SlipstreamError):
    """A model that cannot be fetched."""


class EngineError(SlipstreamError):
    """Another program's engine that cannot be started, ended, or answered an error."""


class RuntimeLibraryError(SlipstreamError):
    """The llama.cpp library is missing, of another release, or refused a call."""
