#!/usr/bin/env bash
# Builds and runs `windfall demo` with the arguments of this script.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

need_rust
say "building and running: windfall demo $*"
exec cargo run --release -p windfall-cli --features drop-waits -- demo "$@"
