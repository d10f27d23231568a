#!/usr/bin/env bash
# The main job of Windfall, on this machine: `windfall demo`. Arguments are passed on.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

need_rust
say "building and running: windfall demo $*"
exec cargo run --release -p windfall-cli -- demo "$@"
