#!/usr/bin/env bash
# Builds the documentation of the library for its users: without private items.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

need_rust
say "building the documentation"
RUSTDOCFLAGS="-D warnings" cargo doc -p windfall --no-deps
say "open ${CARGO_TARGET_DIR:-target}/doc/windfall/index.html"
