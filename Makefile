# Each target makes the virtual environment that it needs. PYTHON picks the interpreter, VENV the place.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# The engines of other people, each in an environment of its own, and the demo model as those read it that take no GGUF.
ENGINES = vllm mlx transformers openvino
ENGINE_MODEL = $(VENV)-transformers/smollm2

.PHONY: demo test test-engines lint types bench clean

demo: $(VENV)/.installed
	$(BIN)/slipstream pull smollm2
	$(BIN)/python bench/demo.py

test: lint types
	$(BIN)/python -m pytest --numprocesses 2

test-engines: $(VENV)/.installed-dev $(ENGINES:%=$(VENV)-%/.installed) $(ENGINE_MODEL)/.written
	SLIPSTREAM_VLLM_PYTHON=$(abspath $(VENV)-vllm/bin/python) \
	SLIPSTREAM_MLX_PYTHON=$(abspath $(VENV)-mlx/bin/python) \
	SLIPSTREAM_TRANSFORMERS_PYTHON=$(abspath $(VENV)-transformers/bin/python) \
	SLIPSTREAM_OPENVINO_PYTHON=$(abspath $(VENV)-openvino/bin/python) \
	SLIPSTREAM_HF_MODEL=$(abspath $(ENGINE_MODEL)) \
	$(BIN)/python -m pytest tests/engines

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/speed.py

clean:
	rm -rf $(VENV) $(ENGINES:%=$(VENV)-%)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)-%/.installed: tests/engines/requirements/%.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --requirement $<
	touch $@

# vLLM's proposer is slipstream's, so it is installed there; three packages that come along do not fit its torch.
$(VENV)-vllm/.installed: tests/engines/requirements/vllm.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --requirement $<
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV)-vllm/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(ENGINE_MODEL)/.written: tests/engines/hf_weights.py $(VENV)-transformers/.installed | $(VENV)/.installed-dev
	$(VENV)-transformers/bin/python $< "$$($(BIN)/slipstream pull smollm2)" $(ENGINE_MODEL)
	touch $@
