/* A server in memory with prepared messages, which keeps what it receives, and a writer of its messages. */
#ifndef MEMORY_H
#define MEMORY_H
#define _POSIX_C_SOURCE 200809L
#define RLX_IMPLEMENTATION
#include "../rlx.h"

typedef struct { uint8_t said[1 << 16], told[1 << 16]; size_t from, to, size, chunk; int opened, broken; double patience; } Memory;

static void *memory_open(void *context, const char *host, const char *port) {
    Memory *m = (Memory *)context;
    (void)host, (void)port;
    m->opened++;
    return m;
}

static ptrdiff_t memory_read(void *connection, void *data, size_t size, double seconds) {
    Memory *m = (Memory *)connection;
    size_t n = m->to - m->from, frame;
    m->patience = seconds;
    if (m->chunk > 0 && n > m->chunk) n = m->chunk;
    if (m->chunk == 0 && n > 0) { /* one frame at a time: the next frame is for the next request */
        frame = 4u + ((size_t)m->said[m->from + 2] << 8) + m->said[m->from + 3];
        if (n > frame) n = frame;
    }
    if (n > size) n = size;
    memcpy(data, m->said + m->from, n);
    m->from += n;
    return (ptrdiff_t)n;
}

static int memory_write(void *connection, const void *data, size_t size) {
    Memory *m = (Memory *)connection;
    if (m->broken) return -1; /* earlier messages can still be read */
    if (m->size + size > sizeof m->told) m->size = 0;
    memcpy(m->told + m->size, data, size);
    m->size += size;
    return 0;
}

static void memory_close(void *connection, int linger) { (void)connection, (void)linger; }

static rlx_transport memory_transport(Memory *m) {
    rlx_transport t = {m, memory_open, memory_read, memory_write, memory_close};
    return t;
}

typedef struct { uint8_t bytes[4096]; size_t size; } Part;

static void add(Part *p, const void *data, size_t size) {
    if (p->size + size > sizeof p->bytes) exit(3);
    memcpy(p->bytes + p->size, data, size);
    p->size += size;
}

static void add_varint(Part *p, uint64_t value) {
    do {
        uint8_t byte = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        add(p, &byte, 1);
    } while ((value >>= 7) != 0);
}

static void add_integer(Part *p, unsigned field, uint64_t value) { add_varint(p, field << 3), add_varint(p, value); }

static void add_bytes(Part *p, unsigned field, const void *data, size_t size) {
    add_varint(p, field << 3 | 2), add_varint(p, size), add(p, data, size);
}

static void add_double(Part *p, unsigned field, double value) { add_varint(p, field << 3 | 1), add(p, &value, 8); }

static void say(Memory *m, unsigned kind, const Part *content) {
    Part frame = {{0}, 0};
    uint8_t length[4] = {0, 0, 0, 0};
    add_bytes(&frame, kind, content->bytes, content->size);
    length[2] = (uint8_t)(frame.size >> 8), length[3] = (uint8_t)frame.size;
    if (m->to + 4 + frame.size > sizeof m->said) exit(3);
    memcpy(m->said + m->to, length, 4), memcpy(m->said + m->to + 4, frame.bytes, frame.size);
    m->to += 4 + frame.size;
}

static double heartbeat = 10;
static int out_of_step, chosen_actions, environment_parameters; /* whether the server supports them */

static Part welcome(uint32_t frame, uint32_t names) {
    Part p = {{0}, 0}, limits = {{0}, 0};
    add_integer(&p, 1, 1), add_bytes(&p, 3, "s1", 2), add_bytes(&p, 4, "da3c", 4);
    add_integer(&limits, 1, frame), add_double(&limits, 2, 600), add_double(&limits, 3, heartbeat);
    add_integer(&limits, 4, 128), add_integer(&limits, 5, names);
    add_bytes(&p, 5, limits.bytes, limits.size);
    if (out_of_step) add_integer(&p, 6, 1);
    if (chosen_actions) add_integer(&p, 7, 1);
    if (environment_parameters) add_integer(&p, 8, 1);
    return p;
}

/* Two parameters for the first episode of `n` environments, at most 3. */
static void add_parameters(Part *p, size_t n) {
    static const double values[6] = {1, 2, 3, 4, 5, 6};
    add_bytes(p, 9, "gravity", 7), add_bytes(p, 9, "size", 4), add_bytes(p, 10, values, 16 * n);
}

static void add_array(Part *p, int dtype, const void *shape, size_t axes, const void *data, size_t size) {
    Part array = {{0}, 0};
    add_integer(&array, 1, (uint64_t)dtype), add_bytes(&array, 2, shape, axes), add_bytes(&array, 3, data, size);
    add_bytes(p, 1, array.bytes, array.size);
}
#endif
