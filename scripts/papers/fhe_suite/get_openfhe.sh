#!/bin/sh
# The harness calls this first; this submission needs no OpenFHE.
