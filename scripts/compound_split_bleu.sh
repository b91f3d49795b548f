#!/usr/bin/env bash
# Compound-split BLEU: both sides with "a-b" as "a ##AT##-##AT## b", scored by fairseq-score.
#
#   scripts/compound_split_bleu.sh HYPOTHESES REFERENCE
#   scripts/compound_split_bleu.sh GENERATE_OUTPUT
#
# HYPOTHESES and REFERENCE are tokenised text, line by line; a file that is split already (ref.sh) is taken as it is.
# GENERATE_OUTPUT is what fairseq-generate printed: its H and T lines are taken in input order, also where it stands for one of the
# two files. Prints fairseq-score's line.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"
if [ $# -ne 1 ] && [ $# -ne 2 ]; then
    usage >&2
    exit 2
fi
need_fairseq fairseq-score
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

need_text H "$1" "the hypotheses"
if [ $# -eq 2 ]; then
    need_text T "$2" "the reference"
    NAMES="$1 and $2"
else
    is_generate_log "$1" || fail "$1 holds neither H nor T lines: give the output of fairseq-generate, or a reference as well"
    need_text T "$1" "the reference"
    NAMES="the H and T lines of $1"
fi
split_text_of H "$1" > "$WORK/sys"
split_text_of T "${2:-$1}" > "$WORK/ref"
need_equal_lengths "$WORK/sys" "$WORK/ref" "$NAMES"
fairseq-score --sys "$WORK/sys" --ref "$WORK/ref" > "$WORK/score" 2> "$WORK/errors" || {
    cat "$WORK/errors" >&2
    fail "fairseq-score failed"
}
grep BLEU "$WORK/score"
