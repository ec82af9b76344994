# What a newcomer needs: `make demo` runs the main job, `make test` the tests.
# `make help` lists the rest.

GO      ?= go
BIN     := bin/twopoint
REAL    := .real
export CGO_ENABLED ?= 0

.PHONY: help build demo test test-real real check vuln bench bench-client bench-accuracy fuzz golden clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

build: ## the static binary, bin/twopoint
	@$(GO) build -trimpath -ldflags "-s -w" -o $(BIN) .

demo: build ## the quick start: three kernels of the embedded server over context
	./$(BIN) run experiments/quickstart || [ $$? -eq 3 ] # a point without a number is a result too

test: ## every test that needs only Go and the system's packages
	$(GO) test -timeout 14m ./...

real: ## real servers and table readers into .real (minutes, once)
	@test/real/setup.sh >/dev/null
	@$(GO) build -o $(REAL)/bin/mkgguf ./test/gguf/cmd/mkgguf

test-real: build real ## a real llama.cpp server; pandas, DuckDB and Polars on real tables
	$(REAL)/venv/bin/python -m unittest discover -s test/real
	PATH="$(CURDIR)/$(REAL)/bin:$$PATH" $(GO) test -tags real -count=1 -timeout 30m ./test/real/... ./runner/engine/enginetest/...

check: ## format, vet, import rules and tests with the race detector
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted; repair with: gofmt -w ."; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags real ./...
	CGO_ENABLED=1 $(GO) test -race -short -timeout 30m $$($(GO) list ./... | grep -v /test/cases) # whose program is built without the detector

vuln: ## known vulnerabilities that the binary can reach (govulncheck, into .real)
	test/vuln/run.sh

bench: ## benchmarks, as text that benchstat reads
	$(GO) test -run '^$$' -bench . -benchtime 1s -count 3 ./schema/plan/... ./runner/... ./kernels/... ./results/...

bench-client: ## CPU time of the client a token and a request, beside others' clients (installed into .real)
	@test/peers/setup.sh
	@$(GO) build -o bin/clientbench ./test/clientbench
	@bin/clientbench

bench-accuracy: build ## error against a scripted clock, beside others' clients (installed into .real)
	@test/peers/setup.sh
	@$(GO) build -o bin/accuracy ./test/accuracy
	@bin/accuracy -twopoint $(BIN) -real $(REAL)

fuzz: ## every fuzz target for FUZZTIME (default 60s)
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $${FUZZTIME:-60s} $$pkg || exit 1; \
	  done; done

golden: build ## rewrite golden files; look at the diff afterwards
	@for pkg in $$(grep -rlE 'flag.Bool\("update"' --include=*_test.go --exclude-dir=real --exclude-dir=.real . | xargs -n1 dirname | sort -u); do $(GO) test $$pkg -update || exit 1; done

clean: ## remove what make builds (not .real and not runs)
	rm -rf bin
