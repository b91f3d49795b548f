# make setup   the environment (.venv, or VENV=an existing one)
# make demo    translates test sentences with the bundled pair in five ways, compares and scores them
# make train-demo   the whole main job on a small corpus: preprocess, train both models, then the same as above with them
# make test    the tests; TESTS=tests/test_noise.py for some of them
# make bench   all strategies side by side, and time against length; results in runs/bench (BENCH_DIR):
#              DATA=bin VERIFIER=verifier.pt DRAFTER=drafter.pt, BENCH_FLAGS="--batch 1 32 --authors THEIR_CHECKOUT ..."
# make lint    ruff and mypy
# make clean   removes caches and build outputs, never an environment or a training run

VENV ?= .venv
TESTS ?= tests
BENCH_DIR ?= runs/bench
# Two workers, each with whole test files, so that what a file prepares once is prepared once.
PYTEST_FLAGS ?= -n 2 --dist loadfile
BIN = $(abspath $(VENV))/bin

.PHONY: setup demo train-demo test bench lint clean

setup:
	@scripts/setup.sh "$(VENV)"

demo: setup
	@PYTHON_BIN="$(BIN)" scripts/demo.sh

train-demo: setup
	@PYTHON_BIN="$(BIN)" scripts/train_demo.sh

test: setup
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest $(PYTEST_FLAGS) $(TESTS)

bench: setup
	@[ -n "$(DATA)" ] && [ -n "$(VERIFIER)" ] && [ -n "$(DRAFTER)" ] || { \
	    echo "usage: make bench DATA=bin VERIFIER=verifier.pt DRAFTER=drafter.pt [BENCH_FLAGS=...]" >&2; exit 1; }
	"$(BIN)/python" benchmarks/compare_strategies.py "$(DATA)" --verifier "$(VERIFIER)" --drafter "$(DRAFTER)" \
	    --output "$(BENCH_DIR)/strategies.md" $(BENCH_FLAGS)
	"$(BIN)/python" benchmarks/length.py --output "$(BENCH_DIR)/length.md"

lint: setup
	"$(BIN)/ruff" check .
	"$(BIN)/mypy"

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find block_plugins scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
