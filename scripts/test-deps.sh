#!/bin/bash
# Installs what the tests start for real, where that is possible, and says what
# is missing where it is not. With CI=true a missing part is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."

missing=()
have() { command -v "$1" >/dev/null 2>&1; }
need_apt=()
have redis-server || need_apt+=(redis-server)
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || need_apt+=(postgresql)
have prometheus || need_apt+=(prometheus)
have chromium || have chromium-browser || have google-chrome || need_apt+=(chromium)
have python3 || need_apt+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || need_apt+=(python3-venv)

if ((${#need_apt[@]})); then
  if have apt-get && [ "$(id -u)" = 0 ]; then
    echo "test-deps: installing ${need_apt[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends "${need_apt[@]}" >/dev/null ||
      missing+=("${need_apt[@]}")
  else
    missing+=("${need_apt[@]}")
  fi
fi

venv=.cache/venv
want=$(cat internal/e2e/python/requirements.txt)
if have python3 && [ "$(cat $venv/.installed 2>/dev/null)" != "$want" ]; then
  echo "test-deps: installing the Python SDK"
  { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check -r internal/e2e/python/requirements.txt &&
    echo "$want" >"$venv/.installed"; } || missing+=(openai-python)
fi

if have npm; then
  for dir in internal/e2e/node; do
    if ! cmp -s $dir/package-lock.json $dir/node_modules/.installed; then
      echo "test-deps: installing the Node packages of $dir"
      { (cd $dir && npm ci --silent --no-audit --no-fund) && cp $dir/package-lock.json $dir/node_modules/.installed; } ||
        missing+=("$dir")
    fi
  done
else
  missing+=(npm)
fi

if ((${#missing[@]})); then
  echo "test-deps: not available: ${missing[*]}; the tests that need them are skipped" >&2
  [ "${CI:-}" = true ] && { echo "test-deps: with CI=true that is a failure" >&2; exit 1; }
fi
exit 0
