#!/bin/sh
# A stage of the workload; the name of this file says which one. The harness runs it in its own folder, with the number
# of a size: 0 single, 1 small, 2 medium, 3 large. Beside it lie `settings`, which `install` wrote, and the net.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings"
export PYTHONPATH="$CHECKOUT${PYTHONPATH:+:$PYTHONPATH}"
case ${1:-} in
    "") size= ;;
    0) size=single ;;
    1) size=small ;;
    2) size=medium ;;
    3) size=large ;;
    *) echo "error: there is no size $1" >&2; exit 2 ;;
esac
io=io/$size
# The server that stays up reads names of files from one pipe and says in the other that it is done.
in=$here/server.in out=$here/server.out

hummingbird() {
    "$PYTHON" -m hummingbird "$@"
}

pixels() {
    "$PYTHON" -m scripts.papers.fhe_suite.pixels "$@"
}

# Wait for a line of the server, at most $1 seconds, and print it. Fails if it is not one that begins with $2.
line() {
    said=$(timeout "$1" head -n 1 "$out") || said="error: no answer; $here/server.log may say why"
    echo "         [server] $said"
    case $said in "$2"*) ;; *) exit 1 ;; esac
}

case $(basename "$0") in
    client_key_generation)
        mkdir -p "$io/public_keys"  # stays empty: no server needs a key
        (umask 077 && mkdir -p "$io/secret_key")
        hummingbird he-keygen --public "$here/client.json" --out "$io/secret_key/client"
        ;;
    server_preprocess_model)
        if [ -p "$in" ]; then echo 1<> "$in"; fi  # an empty line ends the server of an earlier run
        rm -f "$in" "$out"
        mkfifo -m 600 "$in" "$out"
        # It ends after an hour, too.
        setsid timeout 3600 "$PYTHON" -m hummingbird he-evaluate --net "$here/net.server" --follow \
            0<> "$in" 1<> "$out" 2> "$here/server.log" &
        line 300 "ready:"
        ;;
    client_preprocess_input)
        mkdir -p "$io/intermediate"
        pixels images "datasets/$size/intermediate/test_pixels.txt" "$io/intermediate/images.npy"
        ;;
    client_encode_encrypt_input)
        mkdir -p "$io/ciphertexts_upload"
        rm -rf "$io/intermediate/batches"  # of an earlier run
        hummingbird he-encrypt --client "$io/secret_key/client" --images "$io/intermediate/images.npy" \
            --request "$io/ciphertexts_upload/request" --batches "$io/intermediate/batches"
        ;;
    server_encrypted_compute)
        mkdir -p "$io/ciphertexts_download"
        rm -f "$io/ciphertexts_download/answer"
        printf '%s\t%s\n' "$PWD/$io/ciphertexts_upload/request" "$PWD/$io/ciphertexts_download/answer" 1<> "$in"
        line 600 "done:"
        [ -f "$io/ciphertexts_download/answer" ]
        ;;
    client_decrypt_decode)
        hummingbird he-decrypt --client "$io/secret_key/client" --batches "$io/intermediate/batches" \
            --answer "$io/ciphertexts_download/answer" --out "$io/intermediate/logits.npy"
        ;;
    client_postprocess)
        pixels labels "$io/intermediate/logits.npy" "$io/encrypted_model_predictions.txt"
        ;;
    *) echo "error: there is no stage $(basename "$0")" >&2; exit 2 ;;
esac
