#!/usr/bin/env bash
# The published models of a language pair: verifier, drafter, BPE codes and dictionaries, ready for inference.sh.
#
#   scripts/get_checkpoints.sh {wmt14.en-de,wmt14.de-en,wmt16.en-ro,wmt16.ro-en}
#
# OUT          folder (checkpoints/PAIR in the checkout). It receives
#              at-verifier-base.pt, nat-drafter-base.pt   the drafter drafts blocks of k = 25 tokens
#              codes, dict.LANG.txt                       for wmt16 no BPE codes are published: its text comes encoded
# VERIFIER_URL, DRAFTER_URL, CODES_URL, DICT_EN_URL, DICT_DE_URL, DICT_RO_URL
#              other addresses of these, file:// ones among them; NAME_SHA256 with each: its checksum. The checkpoints are on Google
#              Drive. Where it sends a page instead of the file, fetch the file with a browser, and give its file:// address.
# TRIES        of a download that breaks off (5)
# PYTHON_BIN   folder with Python and torch (default: the active environment, else .venv)
#
# Downloads are resumed, and files that are there are checked and kept; nothing half-written has a final name.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"
if [ $# -ne 1 ]; then
    usage >&2
    exit 2
fi
PAIR=$1
case $PAIR in
wmt14.en-de) VERIFIER=1L9z0Y5rked_tYn7Fllh-0VsRdgBHN1Mp DRAFTER=1fPYt1QGgIrNfk78XvGnrx_TeDRYePr2e ;;
wmt14.de-en) VERIFIER=1h5EdTEt2PMqvAqCq2G5bRhCeWk8LzwoG DRAFTER=1IEX2K65rgv5SUHWxiowXYaS--Zqr3GvT ;;
wmt16.en-ro) VERIFIER=1WocmZ9iw_OokYZY_BtzNAjGsgRXB-Aft DRAFTER=1V_WbPRbgmIy-4oZDkws9mdFSw8n8KOGm ;;
wmt16.ro-en) VERIFIER=1LWHC56HvTtvs58EMwoYMT6jKByuMW1dB DRAFTER=1P21nU3u4WdJueEl4nqAY-cwUKAvzPu8A ;;
*) fail "there are models of wmt14.en-de, wmt14.de-en, wmt16.en-ro and wmt16.ro-en, not of $PAIR" ;;
esac
OUT=${OUT:-$ROOT/checkpoints/$PAIR}

. "$ROOT/scripts/fetch.sh"
need_tools
need_fairseq python
mkdir -p "$OUT" 2> "$MESSAGES" || fail "the folder OUT can't be made: $(reason)"
trap 'echo "get_checkpoints.sh: interrupted; the same command goes on from here" >&2; exit 130' INT

source_is VERIFIER "https://drive.google.com/file/d/$VERIFIER/view"
source_is DRAFTER "https://drive.google.com/file/d/$DRAFTER/view"
fetch_vocabulary "$PAIR" "$OUT"
fetch VERIFIER "$OUT/at-verifier-base.pt" checkpoint
fetch DRAFTER "$OUT/nat-drafter-base.pt" checkpoint
SRC=${PAIR#*.} SRC=${SRC%-*} TGT=${PAIR#*-}
echo "for inference.sh: DATA=$OUT SRC=$SRC TGT=$TGT VERIFIER=$OUT/at-verifier-base.pt DRAFTER=$OUT/nat-drafter-base.pt"
