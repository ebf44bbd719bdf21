// AES-128: the round keys, and AES_k(x) ^ x in bit slices, without tables; aes_x86.h computes it by AES instructions.

#pragma once

#include "dispatch.h"

namespace {

// ---- AES: round keys (FIPS 197, section 5.2)

struct Box {
    uint8_t of[256];
};

constexpr Box make_box() {
    Box box{};
    uint8_t p = 1, q = 1;  // p runs through all powers of 3, q = 1/p through those of 0xF6 = 1/3
    do {
        p = uint8_t(p ^ (p << 1) ^ (p & 0x80 ? 0x1B : 0));
        q = uint8_t(q ^ (q << 1));
        q = uint8_t(q ^ (q << 2));
        q = uint8_t(q ^ (q << 4));
        if (q & 0x80) q ^= 0x09;
        const int x = q * 0x101;
        box.of[p] = uint8_t((x ^ x >> 7 ^ x >> 6 ^ x >> 5 ^ x >> 4) ^ 0x63);
    } while (p != 1);
    box.of[0] = 0x63;
    return box;
}

constexpr Box kBox = make_box();

// The S-box on four bytes, by a table: for public keys only.
inline void sub_public(uint8_t* t) {
    for (int j = 0; j < 4; j++) t[j] = kBox.of[t[j]];
}

inline void make_round_keys(const uint8_t* key, uint8_t (*round_keys)[16], void (*sub)(uint8_t*) = sub_public) {
    uint8_t* const k = round_keys[0];
    memcpy(k, key, 16);
    uint8_t constant = 1;
    for (int i = 16; i < 176; i += 4) {
        uint8_t t[4] = {k[i - 4], k[i - 3], k[i - 2], k[i - 1]};
        if (i % 16 == 0) {
            const uint8_t first = t[0];
            t[0] = t[1], t[1] = t[2], t[2] = t[3], t[3] = first;
            sub(t);
            t[0] ^= constant;
            constant = uint8_t(constant << 1 ^ (constant >> 7) * 0x1B);
        }
        for (int j = 0; j < 4; j++) k[i + j] = k[i - 16 + j] ^ t[j];
    }
}

// ---- AES, baseline: eight blocks in bit slices, after T. Pornin's BearSSL (ct64); S-box of Boyar and Peralta, "A
// depth-16 circuit for the AES S-box" (2011). Two 64-bit lanes hold four blocks each; bit 16 r + 4 c + b of word i is
// bit i of the byte in row r, column c of block b of the lane.

typedef uint64_t Two __attribute__((vector_size(16)));

BODY void swap(Two& x, Two& y, uint64_t low, int by) {
    const Two a = x, b = y;
    x = (a & low) | ((b & low) << by);
    y = ((a & ~low) >> by) | (b & ~low);
}

BODY void transpose(Two* q) {
    for (int i = 0; i < 8; i += 2) swap(q[i], q[i + 1], 0x5555555555555555, 1);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) swap(q[i + j], q[i + j + 2], 0x3333333333333333, 2);
    for (int j = 0; j < 4; j++) swap(q[j], q[j + 4], 0x0F0F0F0F0F0F0F0F, 4);
}

BODY uint64_t spread(uint32_t column) {  // byte i of four goes to byte 2 i of eight
    uint64_t x = column;
    x = (x | x << 16) & 0x0000FFFF0000FFFF;
    return (x | x << 8) & 0x00FF00FF00FF00FF;
}

BODY uint32_t gather(uint64_t x) {
    x &= 0x00FF00FF00FF00FF;
    x = (x | x >> 8) & 0x0000FFFF0000FFFF;
    return uint32_t(x | x >> 16);
}

BODY void slice(const uint8_t* blocks, Two* q) {
    for (int i = 0; i < 8; i++) {
        uint32_t w[4];
        memcpy(w, blocks + 16 * i, 16);
        q[i & 3][i >> 2] = spread(w[0]) | spread(w[2]) << 8;
        q[(i & 3) + 4][i >> 2] = spread(w[1]) | spread(w[3]) << 8;
    }
    transpose(q);
}

BODY void unslice(Two* q, uint8_t* blocks) {
    transpose(q);
    for (int i = 0; i < 8; i++) {
        const uint64_t even = q[i & 3][i >> 2], odd = q[(i & 3) + 4][i >> 2];
        const uint32_t w[4] = {gather(even), gather(odd), gather(even >> 8), gather(odd >> 8)};
        memcpy(blocks + 16 * i, w, 16);
    }
}

BODY void sub_bytes(Two* q) {
    const Two x0 = q[7], x1 = q[6], x2 = q[5], x3 = q[4], x4 = q[3], x5 = q[2], x6 = q[1], x7 = q[0];
    // Linear: from the bytes' basis to a tower of fields.
    const Two y14 = x3 ^ x5, y13 = x0 ^ x6, y9 = x0 ^ x3, y8 = x0 ^ x5, t0 = x1 ^ x2, y1 = t0 ^ x7, y4 = y1 ^ x3;
    const Two y12 = y13 ^ y14, y2 = y1 ^ x0, y5 = y1 ^ x6, y3 = y5 ^ y8, t1 = x4 ^ y12, y15 = t1 ^ x5, y20 = t1 ^ x1;
    const Two y6 = y15 ^ x7, y10 = y15 ^ t0, y11 = y20 ^ y9, y7 = x7 ^ y11, y17 = y10 ^ y11, y19 = y10 ^ y8;
    const Two y16 = t0 ^ y11, y21 = y13 ^ y16, y18 = x0 ^ y16;
    // The inverse.
    const Two t2 = y12 & y15, t4 = (y3 & y6) ^ t2, t6 = (y4 & x7) ^ t2, t7 = y13 & y16, t9 = (y5 & y1) ^ t7;
    const Two t11 = (y2 & y7) ^ t7, t12 = y9 & y11, t14 = (y14 & y17) ^ t12, t16 = (y8 & y10) ^ t12;
    const Two t21 = t4 ^ t14 ^ y20, t22 = t6 ^ t16 ^ y19, t23 = t9 ^ t14 ^ y21, t24 = t11 ^ t16 ^ y18;
    const Two t25 = t21 ^ t22, t26 = t21 & t23, t27 = t24 ^ t26, t29 = (t25 & t27) ^ t22, t30 = t23 ^ t24;
    const Two t33 = ((t22 ^ t26) & t30) ^ t24, t36 = t24 & (t27 ^ t33), t37 = t36 ^ t23 ^ t33, t38 = t27 ^ t36;
    const Two t40 = t25 ^ (t29 & t38), t41 = t40 ^ t37, t42 = t29 ^ t33, t43 = t29 ^ t40, t44 = t33 ^ t37;
    const Two t45 = t42 ^ t41, z0 = t44 & y15, z1 = t37 & y6, z2 = t33 & x7, z3 = t43 & y16, z4 = t40 & y1;
    const Two z5 = t29 & y7, z6 = t42 & y11, z7 = t45 & y17, z8 = t41 & y10, z9 = t44 & y12, z10 = t37 & y3;
    const Two z11 = t33 & y4, z12 = t43 & y13, z13 = t40 & y5, z14 = t29 & y2, z15 = t42 & y9, z16 = t45 & y14;
    const Two z17 = t41 & y8;
    // Linear: back, with the affine map of the S-box.
    const Two t46 = z15 ^ z16, t48 = z5 ^ z13, t53 = z0 ^ z3, t54 = z6 ^ z7, t57 = z2 ^ z12 ^ t53, t58 = z4 ^ t46;
    const Two t59 = z3 ^ t54, t60 = t46 ^ t57, t62 = z7 ^ z8 ^ t58, t63 = z9 ^ z10 ^ t58, t64 = z4 ^ t59;
    const Two t65 = z14 ^ t57 ^ t62, t66 = z1 ^ t63, s3 = t53 ^ t66, t67 = t64 ^ t65;
    q[7] = t59 ^ t63;
    q[6] = t64 ^ ~s3;
    q[5] = z16 ^ z17 ^ ~t67;
    q[4] = s3;
    q[3] = z2 ^ z5 ^ t66;
    q[2] = z10 ^ z11 ^ t65;
    q[1] = z12 ^ t48 ^ ~t62;
    q[0] = t48 ^ ~t60;
}

// The S-box on four bytes, without a table: for secret keys.
inline void sub_secret(uint8_t* t) {
    uint8_t blocks[8 * 16] = {};
    memcpy(blocks, t, 4);
    Two q[8];
    slice(blocks, q);
    sub_bytes(q);
    unslice(q, blocks);
    memcpy(t, blocks, 4);
}

BODY void shift_rows(Two* q) {
    for (int i = 0; i < 8; i++) {
        const Two x = q[i];
        q[i] = (x & 0x000000000000FFFF) | ((x & 0x00000000FFF00000) >> 4) | ((x & 0x00000000000F0000) << 12) |
               ((x & 0x0000FF0000000000) >> 8) | ((x & 0x000000FF00000000) << 8) | ((x & 0xF000000000000000) >> 12) |
               ((x & 0x0FFF000000000000) << 4);
    }
}

BODY void mix_columns(Two* q) {
    Two r[8], a[8];
    for (int i = 0; i < 8; i++) r[i] = q[i] >> 16 | q[i] << 48, a[i] = q[i] ^ r[i];
    for (int i = 0; i < 8; i++) {
        const Two twice = a[(i + 7) & 7];  // 2 a: a byte's bits go up, and the highest to bits 0, 1, 3 and 4
        Two x = r[i] ^ twice ^ (a[i] >> 32 | a[i] << 32);
        if (i == 1 || i == 3 || i == 4) x ^= a[7];
        q[i] = x;
    }
}

struct Sliced {
    Two k[11][8];
};

inline void slice_keys(const uint8_t (*round_keys)[16], Sliced& out) {
    for (int r = 0; r < 11; r++) {
        uint8_t copies[8][16];
        for (auto& copy : copies) memcpy(copy, round_keys[r], 16);
        slice(copies[0], out.k[r]);
    }
}

inline void hash8(const Sliced& keys, uint8_t* x) {  // AES(x) ^ x of eight blocks
    Two q[8];
    slice(x, q);
    for (int i = 0; i < 8; i++) q[i] ^= keys.k[0][i];
    for (int r = 1; r < 11; r++) {
        sub_bytes(q);
        shift_rows(q);
        if (r < 10) mix_columns(q);
        for (int i = 0; i < 8; i++) q[i] ^= keys.k[r][i];
    }
    uint8_t y[8 * 16];
    unslice(q, y);
    for (int i = 0; i < 8 * 16; i++) x[i] ^= y[i];
}

}  // namespace
