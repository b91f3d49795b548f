#!/usr/bin/env bash
# A real parallel corpus out of Debian packages, ready for fairseq. Nothing is installed, and no root is needed.
#
#   scripts/prepare_corpus.sh en de OUT
#
# OUT receives
#   README.md        sources, versions, licences, and what was dropped and why
#   licences/        the packages' copyright files
#   text/            {train,valid,test}.{en,de}, raw text; .family names the source of each line
#   codes, bpe/, bin/   what scripts/preprocess.sh makes of it (joint BPE of BPE_SYMBOLS merges, default 8000)
#   work/            the unpacked packages; may be removed afterwards
# Needs apt-get and dpkg-deb with Debian's archive among apt's sources (a few minutes, 40 MB of downloads), and the Python
# packages of the extra "corpus". A step whose result is there is skipped; nothing half-written is left under a final name.
# Environment: FAMILIES (the sources to take: lohelp, LibreOffice's help; ddtp, package descriptions; ding, a dictionary's
# examples; default: all), BPE_SYMBOLS, WORKERS, HELD_OUT (lines of valid and test, default 1000), PYTHON_BIN (folder with the
# commands; default: the active environment, else .venv).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
source "$ROOT/scripts/common.sh"

if [ $# -ne 3 ]; then
    usage >&2
    exit 2
fi
[ "$1 $2" = "en de" ] ||
    fail "only 'en de' can be built, not '$1 $2'; for text of your own there is scripts/preprocess.sh"
read -ra FAMILIES <<< "${FAMILIES:-lohelp ddtp ding}"
PACKAGES=()
for family in "${FAMILIES[@]}"; do
    case $family in
    lohelp) PACKAGES+=(libreoffice-help-en-us libreoffice-help-de) ;;
    ding) PACKAGES+=(trans-de-en) ;;
    ddtp) ;;
    *) fail "FAMILIES may name lohelp, ddtp and ding, not $family" ;;
    esac
done
mkdir -p "$3"
OUT=$(cd "$3" && pwd)
WORK=$OUT/work
trap 'echo "prepare_corpus.sh: interrupted; the same command goes on from here" >&2; exit 130' INT

# apt with lists and cache of its own, and with the Translation indices, which many machine images turn off.
configure_apt() {
    mkdir -p "$WORK/apt/state/lists/partial" "$WORK/apt/cache/archives/partial"
    cat > "$WORK/apt/apt.conf" <<EOF
Dir::State "$WORK/apt/state";
Dir::Cache "$WORK/apt/cache";
#clear Acquire::Languages;
Acquire::Languages { "en"; "de"; };
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
EOF
}

apt() { # COMMAND ARGUMENT...
    apt-get -q -c "$WORK/apt/apt.conf" "$@"
}

fetch() {
    for command in apt-get dpkg-deb; do
        command -v "$command" > /dev/null ||
            fail "no $command here: the corpus is made of Debian packages, run this on Debian or in a Debian container"
    done
    configure_apt
    echo "fetching the package indices"
    apt update || fail "apt-get update failed; see its messages above"

    rm -rf "$WORK/indices.tmp" "$WORK/packages.tmp" "$WORK/apt/debs"
    mkdir -p "$WORK/indices.tmp" "$WORK/packages.tmp" "$WORK/apt/debs"
    : > "$WORK/versions.tsv.tmp"
    for family in "${FAMILIES[@]}"; do
        [ "$family" != ddtp ] || fetch_descriptions
    done
    [ ${#PACKAGES[@]} = 0 ] || fetch_packages
    rm -rf "$WORK/indices" "$WORK/packages"
    mv "$WORK/indices.tmp" "$WORK/indices"
    mv "$WORK/packages.tmp" "$WORK/packages"
    mv "$WORK/versions.tsv.tmp" "$WORK/versions.tsv" # last: it says that all the rest is there
    rm -rf "$WORK/apt"
}

fetch_descriptions() {
    local index kind language name file
    echo "reading the package descriptions"
    for index in Packages: Translations:en Translations:de; do
        kind=${index%:*} language=${index#*:}
        name=$kind
        [ -z "$language" ] || name=Translation-$language
        apt indextargets --format "\$(FILENAME)" "Created-By: $kind" ${language:+"Language: $language"} |
            sort | while read -r file; do
                /usr/lib/apt/apt-helper cat-file "$file"
                echo
            done > "$WORK/indices.tmp/$name"
        [ -s "$WORK/indices.tmp/$name" ] || fail "apt's sources have no $name index; is Debian's archive among them?"
    done
    apt indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' "Created-By: Translations" "Language: de" |
        sort -u | paste -s -d ',' | sed 's/^/indices\tTranslation-en and -de of /' >> "$WORK/versions.tsv.tmp"
}

fetch_packages() {
    local deb
    echo "fetching ${PACKAGES[*]}"
    (cd "$WORK/apt/debs" && apt download "${PACKAGES[@]}") || fail "apt-get download failed; see its messages above"
    for deb in "$WORK/apt/debs"/*.deb; do
        dpkg-deb -x "$deb" "$WORK/packages.tmp"
        dpkg-deb -W --showformat='${Package}\t${Version}\n' "$deb"
    done >> "$WORK/versions.tsv.tmp"
}

if [ ! -e "$OUT/text" ]; then
    need_fairseq python
    python -c 'import lxml, py3langid, tqdm' ||
        fail "$(command -v python) lacks a package (see above); install the extra: pip install -e '.[corpus]'"
    if [ ! -e "$WORK/versions.tsv" ]; then
        fetch
    fi
    PYTHONPATH=$ROOT/scripts python -m corpus.build "$WORK" "$OUT" --held-out "${HELD_OUT:-1000}" \
        --families "${FAMILIES[@]}"
fi
"$ROOT/scripts/preprocess.sh" en de "$OUT/text" "$OUT"
