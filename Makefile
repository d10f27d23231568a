# Each target installs the tools that it needs, prints its steps, and can be run again. The commands are in scripts/.

.DEFAULT_GOAL := help
.PHONY: help demo test soak mutants coverage sanitize fuzz bench doc

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## drop tables under load: a table in the terminal, and report.html (ARGS="--seconds 20 --out DIR")
	@bash scripts/demo.sh $(ARGS)

test: ## format, lints, docs, licences, all tests (QUICK=1: only the fast ones, some minutes)
	@QUICK="$(QUICK)" bash scripts/test.sh

soak: ## the test suites with new seeds, until the time is over (ARGS="--seconds 3600 --suites crash")
	@bash scripts/soak.sh $(ARGS)

mutants: ## mutation testing of a sample of the code (SECONDS=600; continues the last run)
	@bash scripts/mutants.sh "$(or $(SECONDS),600)"

coverage: ## test coverage of the engine by line and branch: a table, and pages in target/coverage/html
	@bash scripts/coverage.sh

bench: ## the benchmarks, with the bounds that they check (BENCH="drop read", ARGS="--json")
	@BENCH="$(BENCH)" bash scripts/bench.sh $(ARGS)

fuzz: ## fuzz the decoders (SECONDS=600, TARGETS="page csv")
	@bash scripts/fuzz.sh "$(or $(SECONDS),600)" $(TARGETS)

doc: ## the documentation of the library
	@bash scripts/doc.sh

sanitize: ## concurrency tests under the thread and the address sanitizer, with a nightly compiler (SECONDS=60)
	@bash scripts/sanitize.sh $(SECONDS)
