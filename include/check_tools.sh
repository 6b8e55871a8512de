# Says in one line what is missing and how to get it.
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Lakefork needs Python 3.11 or newer ($("$python" --version 2>&1 | head -n 1)): install it (apt-get install python3 python3-venv, brew install python) or name it: make PYTHON=/path/to/python3.11" >&2
  exit 1
fi
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\)[".].*/\1/p' | head -n 1)
if [ -z "$version" ] || [ "$version" -lt 17 ]; then
  echo "Lakefork needs Java 17 or newer for Spark (found: ${version:-none}): install it (apt-get install openjdk-17-jre-headless, brew install openjdk@17) or set JAVA_HOME" >&2
  exit 1
fi
