# Functions that the scripts share. Source this file in bash with the workspace as the current folder.
# shellcheck shell=bash

# Some build servers do not set HOME; rustup and cargo then ask the system, and so does this script.
if [[ -z ${HOME:-} ]]; then
    unset HOME
    export HOME=~
fi

toolchain=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)

say() {
    printf '\n==> %s\n' "$*"
}

fail() {
    printf '\nerror: %s\n' "$*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# need COMMAND PACKAGE...: installs the Debian packages if the command is missing.
need() {
    local command=$1
    shift
    if has "$command"; then
        return
    fi
    local root=()
    if [[ $(id -u) != 0 ]]; then
        has sudo || fail "\`$command\` is missing, and installing it needs root or sudo: install $* and run this again"
        root=(sudo)
    fi
    has apt-get || fail "\`$command\` is missing, and so is apt-get: install the package that has it ($* on Debian) and run this again"
    say "installing $* (for \`$command\`)"
    local by_hand="apt-get failed (see above): install $* and run this again"
    "${root[@]}" apt-get update -qq || fail "$by_hand"
    # Errors go to the standard error.
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" \
        >/dev/null || fail "$by_hand"
    hash -r
    has "$command" || fail "$* was installed, but \`$command\` is still missing"
}

# Subcommands of cargo that a script needs from the toolchain, such as `(fmt clippy)`.
rust_parts=()

# Succeeds if the cargo on PATH can be used. A toolchain newer than the pinned one builds the project as well, but may
# differ in format and lints, so a script that needs these requires the exact version.
cargo_suits() {
    has cargo || return 1
    local version part
    version=$(cargo --version 2>/dev/null | cut -d ' ' -f 2)
    if ((${#rust_parts[@]} > 0)); then
        [[ $version == "$toolchain" ]] || return 1
    else
        [[ -n $version && $(printf '%s\n' "$toolchain" "$version" | sort -V | head -n 1) == "$toolchain" ]] || return 1
    fi
    for part in "${rust_parts[@]}"; do
        cargo "$part" --version >/dev/null 2>&1 || return 1
    done
}

# Ensures that a linker and a cargo that suits rust-toolchain.toml are installed.
need_rust() {
    need cc gcc libc6-dev
    # cargo needs the certificates to fetch the dependencies, rustup to fetch Rust.
    [[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]] || need update-ca-certificates ca-certificates
    if [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    # This check comes first, because running cargo would make rustup install the toolchain silently.
    if has rustup && [[ $'\n'$(rustup toolchain list 2>/dev/null) != *$'\n'"$toolchain"* ]]; then
        say "installing Rust $toolchain"
        rustup toolchain install "$toolchain" --profile minimal --component rustfmt,clippy --no-self-update
    fi
    if cargo_suits; then
        return
    fi
    need_rustup
    say "installing Rust $toolchain"
    rustup toolchain install "$toolchain" --profile minimal --component rustfmt,clippy --no-self-update
    cargo_suits || fail "rustup installed Rust $toolchain, but cargo does not run: $(cargo --version 2>&1 || true)"
}

# Ensures that rustup is installed, also if there is a cargo that does not come from it.
need_rustup() {
    if [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/rustup ]]; then
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    if ! has rustup; then
        need curl curl ca-certificates
        say "installing rustup into ${CARGO_HOME:-$HOME/.cargo}"
        # The installer that https://sh.rustup.rs would choose. It comes from the host of the toolchains, so only that
        # host must be reachable.
        local init url
        url=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/$(uname -m)-unknown-linux-gnu/rustup-init
        init=$(mktemp -d)
        curl --proto '=https' --tlsv1.2 --silent --show-error --fail --location --output "$init/rustup-init" "$url" ||
            fail "rustup could not be fetched from $url (see above): check the network and run this again"
        chmod +x "$init/rustup-init"
        # The output is discarded: it advises a change of PATH, which these scripts do not need.
        "$init/rustup-init" -y -q --no-modify-path --profile minimal --default-toolchain none >/dev/null ||
            fail "rustup could not be installed (see above)"
        rm -r "$init"
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        hash -r
    fi
}

# Tools that cargo builds for these scripts only.
tools=$PWD/target/tools

# has_tool NAME: succeeds if this subcommand of cargo (`cargo-deny`) is installed, in target/tools or by the user.
has_tool() {
    PATH="$tools/bin:$PATH" cargo "${1#cargo-}" --version 2>/dev/null | grep -q "^$1 "
}

# install_tool NAME VERSION [OPTION...]: takes minutes. An interrupted build is continued by the next one.
install_tool() {
    mkdir -p "$tools"
    cargo install --quiet --locked "$1@$2" "${@:3}" --root "$tools" --target-dir "$tools/build-$1" && rm -rf "$tools/build-$1"
}

# need_tool NAME VERSION: installs the tool if it is missing, and adds it to PATH for cargo.
need_tool() {
    if ! has_tool "$1"; then
        say "installing $1 $2 into target/tools"
        install_tool "$1" "$2" || fail "$1 could not be installed (see above)"
    fi
    export PATH="$tools/bin:$PATH"
}

# need_tests COMMAND... -- FILTER...: fails unless each filter occurs in the list of tests, because cargo succeeds if a
# filter matches no test. The list has a line `NAME: test` for each test.
need_tests() {
    local command=() listed filter
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    shift
    listed=$("${command[@]}" -- --list) || fail "the tests could not be listed (see above)"
    for filter; do
        [[ $'\n'$listed$'\n' == *"$filter"* ]] || fail "no test matches: $filter"
    done
}
