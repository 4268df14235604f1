#!/usr/bin/env bash
# What live video or a call is like under several policies: benches/media.sh video | voice. Runs scenarios/$1.toml in the
# lab once per policy, on the same film, seed and losses, and prints one line each; the reports are in bench-results/.
#
# POLICIES="adaptive redundant" chooses some; SCENARIO=FILE another scenario; RUNS=3 prints the median of so many seeds.
# `consn+pdc` is `consn` with `pdc = true`. With PLEACH_TRACES (a directory of recorded links), `video` also runs
# scenarios/video-recorded.toml and scenarios/video-lte.toml.
set -euo pipefail
what=$1
cd "$(dirname "$0")/.."
bin=${PLEACH_BIN:-target/release/pleach}
out=bench-results/$what
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One scenario: each link alone, then the policies that use both.
compare() {
    local scenario=$1 policies label link policy results=() seed
    local dir=$out/$(basename "$scenario" .toml)
    policies=${POLICIES:-single weighted srtt-weighted consn+pdc redundant adaptive}
    mkdir -p "$dir"
    for policy in $policies; do
        local variants=("$policy")
        if [ "$policy" = single ]; then
            variants=()
            for link in $(links "$scenario"); do variants+=("single $link"); done
        fi
        for label in "${variants[@]}"; do
            for seed in $(seq "${RUNS:-1}"); do
                local name=${label// /-}-$seed
                variant "$scenario" "$label" "$seed" >"$work/$name.toml"
                # Traces are named relative to PLEACH_TRACES, so the copy may lie anywhere.
                if ! "$bin" lab run "$work/$name.toml" --out "$dir/$name" >"$work/log" 2>&1; then
                    echo "$label, seed $seed, failed:" >&2
                    cat "$work/log" >&2
                    exit 1
                fi
                results+=("$label=$dir/$name/results.json")
            done
        done
    done
    python3 benches/media.py "$what" "${results[@]}"
}

links() { awk '/^\[\[link\]\]/ { inside = 1 } /^\[/ && !/^\[\[link\]\]/ { inside = 0 } inside && /^name/ { gsub(/.*= *"|".*/, ""); print }' "$1"; }

# The scenario with another policy and seed; "single LINK" names the link.
variant() {
    awk -v policy="${2%% *}" -v link="${2#* }" -v seed="$3" '
        /^seed *=/ { print "seed = " seed; next }
        /^policy *=/ {
            pdc = sub(/\+pdc$/, "", policy)
            print "policy = \"" policy "\""
            if (pdc) print "pdc = true"
            if (policy == "single") print "link = \"" link "\""
            next
        }
        { print }' "$1"
}

compare "${SCENARIO:-scenarios/$what.toml}"
if [ "$what" = video ] && [ -z "${SCENARIO:-}" ]; then
    if [ -n "${PLEACH_TRACES:-}" ]; then
        compare scenarios/video-recorded.toml
        compare scenarios/video-lte.toml
    else
        echo "SKIPPED: scenarios/video-recorded.toml, video-lte.toml: PLEACH_TRACES names no directory of recorded links"
    fi
fi
