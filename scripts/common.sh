# What the scripts share: to be sourced, by bash, with the workspace as the current folder.
# shellcheck shell=bash

# Some build servers run without it; rustup and cargo then ask the system, and so does this.
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

# need COMMAND PACKAGE...: installs Debian packages unless the command is there.
need() {
    local command=$1
    shift
    if has "$command"; then
        return
    fi
    local root=()
    if [[ $(id -u) != 0 ]]; then
        has sudo || fail "\`$command\` is missing, and neither root nor sudo is at hand: install $* and run this again"
        root=(sudo)
    fi
    has apt-get || fail "\`$command\` is missing, and so is apt-get: install what gives it ($* on Debian) and run this again"
    say "installing $* (for \`$command\`)"
    local by_hand="apt-get did not do it (see above): install $* and run this again"
    "${root[@]}" apt-get update -qq || fail "$by_hand"
    # What goes wrong comes over the other channel.
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" \
        >/dev/null || fail "$by_hand"
    hash -r
    has "$command" || fail "$* was installed, but \`$command\` is still missing"
}

# What of Rust a script needs beside cargo: it may set this to `(fmt clippy)`.
rust_parts=()

# Whether the cargo on PATH is the one to use. A newer one than the pinned builds the project too, but has opinions of
# its own on format and lints: who needs those needs the very version.
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

# A linker, and cargo as rust-toolchain.toml pins it.
need_rust() {
    need cc gcc libc6-dev
    # cargo needs them to fetch the dependencies, rustup to fetch Rust.
    [[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]] || need update-ca-certificates ca-certificates
    if [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    # Asked first, because cargo would make rustup install the toolchain without a word.
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

# rustup, whatever cargo is there beside it.
need_rustup() {
    if [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/rustup ]]; then
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    if ! has rustup; then
        need curl curl ca-certificates
        say "installing rustup into ${CARGO_HOME:-$HOME/.cargo}"
        # What https://sh.rustup.rs would choose: the host that gives the toolchain gives this too, so one is enough.
        local init url
        url=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/$(uname -m)-unknown-linux-gnu/rustup-init
        init=$(mktemp -d)
        curl --proto '=https' --tlsv1.2 --silent --show-error --fail --location --output "$init/rustup-init" "$url" ||
            fail "rustup could not be fetched from $url (see above): with a network, run this again"
        chmod +x "$init/rustup-init"
        # It would advise to change PATH, which no script of ours needs.
        "$init/rustup-init" -y -q --no-modify-path --profile minimal --default-toolchain none >/dev/null ||
            fail "rustup could not be installed (see above)"
        rm -r "$init"
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        hash -r
    fi
}

# What cargo builds for the scripts alone.
tools=$PWD/target/tools

# has_tool NAME: whether there is this subcommand of cargo (`cargo-deny`), ours or the user's.
has_tool() {
    PATH="$tools/bin:$PATH" cargo "${1#cargo-}" --version 2>/dev/null | grep -q "^$1 "
}

# install_tool NAME VERSION [OPTION...]: takes minutes. What an interrupted build has made serves the next.
install_tool() {
    mkdir -p "$tools"
    cargo install --quiet --locked "$1@$2" "${@:3}" --root "$tools" --target-dir "$tools/build-$1" && rm -rf "$tools/build-$1"
}

# need_tool NAME VERSION: installs it unless it is there, and has cargo find it.
need_tool() {
    if ! has_tool "$1"; then
        say "installing $1 $2 into target/tools"
        install_tool "$1" "$2" || fail "$1 could not be installed (see above)"
    fi
    export PATH="$tools/bin:$PATH"
}

# need_tests COMMAND... -- FILTER...: whether the list of the tests has this, for cargo runs none without a word. It has a
# line `NAME: test` for each.
need_tests() {
    local command=() listed filter
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    shift
    listed=$("${command[@]}" -- --list) || fail "there is no list of the tests (see above)"
    for filter; do
        [[ $'\n'$listed$'\n' == *"$filter"* ]] || fail "there is no test of this name: $filter"
    done
}
