#!/bin/sh
# Runs after each set of files: shows them on the console.
cd /opt/nstance-agent/recv
echo "nstance: files installed:" * > /dev/console
