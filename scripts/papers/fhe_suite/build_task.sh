#!/bin/sh
# Make the programs of the submission in the folder $1: the harness calls this before every run.
set -eu
mkdir -p "$1/build"
cp "$1/settings" "$1/net.server" "$1/client.json" "$1/build/"
for name in client_key_generation client_preprocess_input client_encode_encrypt_input server_preprocess_model \
    server_encrypted_compute client_decrypt_decode client_postprocess; do
    cp "$1/stage.sh" "$1/build/$name"
    chmod 755 "$1/build/$name"
done
