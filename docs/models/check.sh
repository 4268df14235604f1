#!/usr/bin/env bash
# Checks handshake.pml: today's protocol keeps every property, and each variant without a defence breaks one.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$PWD/handshake.pml

# Prints what SPIN finds of the model with the given defines: "holds", or the property that breaks.
outcome() {
    (
        cd "$work"
        rm -f pan* ./*.trail
        spin -a "$@" "$model" >/dev/null
        cc -O1 -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c
        ./pan -m1000000 -n >result
        if grep -q 'errors: 0' result && ! grep -q 'search depth too small' result; then
            echo "holds $(awk '/states, stored/ { print $1 }' result)"
        else
            sed -n 's/^pan:1: assertion violated //p' result | head -n 1
        fi
    )
}

failed=0
expect() {
    local name=$1 wanted=$2 found
    shift 2
    found=$(outcome "$@")
    if [[ $found == $wanted ]]; then
        printf '%-18s %s\n' "$name" "$found"
    else
        printf '%-18s FAILED: %s, expected %s\n' "$name" "${found:-nothing}" "$wanted"
        failed=1
    fi
}

expect today 'holds *'
expect NO_TIME '*answered*' -DNO_TIME
expect NO_START '*answered*' -DNO_START
expect NO_COOKIE '*current*' -DNO_COOKIE
expect NO_PROOF '*current*' -DNO_PROOF
expect NO_ASSOCIATION '*known_run*' -DNO_ASSOCIATION
expect NO_CONFIRMATION '*current*' -DNO_CONFIRMATION
expect KEY_HOLDER '*answered*' -DKEY_HOLDER
exit $failed
