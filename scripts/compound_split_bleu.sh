#!/usr/bin/env bash
# Compound-split BLEU: both sides with "a-b" as "a ##AT##-##AT## b", scored by fairseq-score.
#
#   scripts/compound_split_bleu.sh HYPOTHESES REFERENCE
#   scripts/compound_split_bleu.sh GENERATE_OUTPUT
#
# HYPOTHESES and REFERENCE are tokenised text, line by line; a file that is split already (ref.sh) is taken as it is.
# GENERATE_OUTPUT is what fairseq-generate printed, with its H and T lines. Prints fairseq-score's line.
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

need_file "$1" "the hypotheses"
if [ $# -eq 2 ]; then
    need_file "$2" "the reference"
    split_unless_split "$1" > "$WORK/sys"
    split_unless_split "$2" > "$WORK/ref"
    NAMES="$1 and $2"
else
    is_generate_log "$1" || fail "$1 holds neither H nor T lines: give the output of fairseq-generate, or a reference as well"
    generate_lines H "$1" | compound_split > "$WORK/sys"
    generate_lines T "$1" | compound_split > "$WORK/ref"
    NAMES="the H and T lines of $1"
fi

# fairseq-score stops at the end of the shorter file and says nothing.
SYS_LINES=$(grep -c '' "$WORK/sys" || true)
REF_LINES=$(grep -c '' "$WORK/ref" || true)
[ "$SYS_LINES" -eq "$REF_LINES" ] || fail "$NAMES differ in their number of lines: $SYS_LINES and $REF_LINES"
[ "$SYS_LINES" -gt 0 ] || fail "$NAMES are empty"
fairseq-score --sys "$WORK/sys" --ref "$WORK/ref" > "$WORK/score" 2> "$WORK/errors" || {
    cat "$WORK/errors" >&2
    fail "fairseq-score failed"
}
grep BLEU "$WORK/score"
