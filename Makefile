# Every target installs what it needs, says what it does, and can be run again. The work is in scripts/.

.DEFAULT_GOAL := help
.PHONY: help demo test soak mutants coverage sanitize fuzz bench doc

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## drop tables under load and watch: terminal table and report.html (ARGS="--seconds 20 --out DIR")
	@bash scripts/demo.sh $(ARGS)

test: ## format, lints, docs, licences, every test (QUICK=1: an answer within minutes, of what takes seconds)
	@QUICK="$(QUICK)" bash scripts/test.sh

soak: ## the test suites with ever new seeds (ARGS="--seconds 3600 --suites crash")
	@bash scripts/soak.sh $(ARGS)

mutants: ## how many small changes of the code the tests notice, of a sample (SECONDS=600, goes on where it was)
	@bash scripts/mutants.sh "$(or $(SECONDS),600)"

coverage: ## lines and branches of the engine that the tests run: a table, and pages in target/coverage/html
	@bash scripts/coverage.sh

bench: ## the benchmarks that the claims rest on (BENCH="drop read", ARGS="--json")
	@BENCH="$(BENCH)" bash scripts/bench.sh $(ARGS)

fuzz: ## look for bytes that break a decoder, for SECONDS=600 (TARGETS="page csv")
	@bash scripts/fuzz.sh "$(or $(SECONDS),600)" $(TARGETS)

doc: ## the documentation of the library
	@bash scripts/doc.sh

sanitize: ## real threads under the thread and the address sanitizer of a nightly compiler (SECONDS=600)
	@bash scripts/sanitize.sh $(SECONDS)
