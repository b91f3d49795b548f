#!/usr/bin/env bash
# The reference for compound-split BLEU: "a-b" becomes "a ##AT##-##AT## b", as in the evaluation of Vaswani et al. (2017).
#
#   ref.sh REFERENCE [SPLIT_REFERENCE]
#
# REFERENCE is tokenised text, or the output of fairseq-generate, whose T lines are taken in input order. The result goes to
# SPLIT_REFERENCE, or to standard output without it.
#
# The same, and the score of a decoder's output in one go, by variables:
#
#   GEN=beam5.out OUT=gad.out [SYS=gad.out.sys] [REF=gad.out.ref] ref.sh
#
# GEN is the REFERENCE, OUT the decoder's output: text in input order (inference.sh), or what fairseq-generate printed, whose H lines
# are taken. SYS and REF receive the split texts.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/common.sh"

# Written beside the target and moved, so that it may be the source as well and is never seen half-written.
write() {
    cat > "$1.tmp"
    mv "$1.tmp" "$1"
}

help_if_asked "$@"

if [ $# -eq 1 ]; then
    need_text T "$1" "the reference"
    split_text_of T "$1"
elif [ $# -eq 2 ]; then
    need_text T "$1" "the reference"
    split_text_of T "$1" | write "$2"
elif [ $# -eq 0 ] && [ -n "${GEN:-}" ] && [ -n "${OUT:-}" ]; then
    need_text T "$GEN" "the reference (GEN)"
    need_text H "$OUT" "the decoder's output (OUT)"
    SYS=${SYS:-$OUT.sys}
    REF=${REF:-$OUT.ref}
    split_text_of T "$GEN" | write "$REF"
    split_text_of H "$OUT" | write "$SYS"
    "$ROOT/scripts/compound_split_bleu.sh" "$SYS" "$REF"
else
    usage >&2
    exit 2
fi
