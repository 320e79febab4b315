/* A client of RLX, version 1 (protocol/RLX.md), in one header: C99 and POSIX sockets, also for C++.
 *
 * In one source file:  #define RLX_IMPLEMENTATION  before  #include "rlx.h". That file needs POSIX.1-2008.
 * Only rlx_open reserves memory. Use a client from one thread; different clients are independent. */
#ifndef RLX_H
#define RLX_H

#include <stddef.h>
#include <stdint.h>

#define RLX_VERSION "1.0.0"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types, as numbered on the wire. A bool is a byte, 0 or 1; a float16 is its 16 bits. */
enum { RLX_BOOL = 1, RLX_UINT8, RLX_UINT16, RLX_UINT32, RLX_UINT64, RLX_INT8, RLX_INT16, RLX_INT32, RLX_INT64,
       RLX_FLOAT16, RLX_FLOAT32, RLX_FLOAT64 };
enum { RLX_BOX = 1, RLX_DISCRETE, RLX_MULTI_DISCRETE, RLX_MULTI_BINARY, RLX_TUPLE, RLX_DICT };
enum { RLX_DISABLED = 1, RLX_SAME_STEP, RLX_NEXT_STEP };
enum { RLX_TRAIN = 1, RLX_EXPLOIT };
/* Results of calls. INVALID: an argument is invalid, nothing was sent. INTERRUPTED: the connection and its episodes are
 * lost. Reset the environments and call rlx_init, which reconnects. FINISHED: training has finished. */
enum { RLX_OK = 0, RLX_INTERRUPTED = 1, RLX_FINISHED = 2, RLX_FAILED = -1, RLX_INVALID = -2 };

/* A space. Its pointers are not copied: their targets must live as long as the client. */
typedef struct rlx_space {
    int kind;                       /* RLX_BOX, ... */
    int dtype;                      /* of a box */
    size_t axes;                    /* the length of shape (box, multi_binary) or nvec */
    const uint32_t *shape;
    size_t lows, highs;             /* of a box: the number of bounds, 0, 1 or one for each element */
    const double *low, *high;
    int64_t n, start;               /* of a discrete */
    const int64_t *nvec;            /* of a multi_discrete */
    size_t parts;                   /* of a tuple or a dict */
    const struct rlx_space *spaces;
    const char *const *keys;        /* of a dict: UTF-8 */
} rlx_space;

/* A transport that replaces the POSIX sockets, for TLS or another system. `open` returns a connection or NULL. `read`
 * returns the number of bytes read, 0 at the end, -1 on an error or after `seconds` without a byte. `write` writes all
 * bytes and returns 0, or -1. `close` ends its own direction; if `linger`, it drops incoming data for some moments. */
typedef struct rlx_transport {
    void *context;
    void *(*open)(void *context, const char *host, const char *port);
    ptrdiff_t (*read)(void *connection, void *data, size_t size, double seconds);
    int (*write)(void *connection, const void *data, size_t size);
    void (*close)(void *connection, int linger);
} rlx_transport;

/* Fill with zeros first: 0 or NULL is the default. Texts and spaces are not copied; autoreset and transport are. */
typedef struct rlx_config {
    const char *addresses;          /* "HOST:PORT", or several, separated by commas, tried in turn */
    const char *token, *environment, *host, *session_id;
    rlx_space observation, action;
    uint32_t environments;          /* N; 0: 1 */
    uint32_t frame_skip;
    const int *autoreset;           /* RLX_DISABLED, ...: one mode for all environments, or N */
    size_t autoresets;              /* number of modes; 0: RLX_DISABLED */
    int mode;                       /* 0: RLX_TRAIN */
    int reports_episodes;
    double retry_seconds;           /* how long to retry after a failure; 0: 300; negative: do not retry */
    void (*on_retry)(void *context, const char *reason, double seconds); /* called before each wait; NULL: print a line to stderr */
    void *retry_context;
    const rlx_transport *transport; /* NULL: POSIX sockets */
    int out_of_step;                /* for rlx_init_idle and rlx_step_idle. The server's algorithm must support it */
    int chosen_actions;             /* for rlx_step_chosen and rlx_reset_chosen: likewise */
    int environment_parameters;     /* for rlx_parameters: likewise */
} rlx_config;

typedef struct rlx_episode { uint32_t environment; double episode_return; uint32_t length; } rlx_episode;

/* The outcome of the last actions. A batch of leaves is an array of pointers, one for each leaf, to N x its elements. */
typedef struct rlx_outcome {
    const double *reward;               /* N */
    const void *const *observation;     /* not used by rlx_reset */
    const uint8_t *terminated;          /* N, or NULL: all false. Not used by rlx_reset */
    const uint8_t *truncated;
    const void *const *final_observation; /* required if an episode was truncated, in SAME_STEP (other rows are ignored) and in rlx_reset */
    const rlx_episode *episodes;
    size_t episode_count;
} rlx_outcome;

/* A number that the server sets for each episode, with one value for each environment. */
typedef struct rlx_parameter { const char *name; const double *values; } rlx_parameter;

typedef struct rlx_client rlx_client;

/* Return a client, or NULL and a text in `why` (256 bytes). It does not connect yet. */
rlx_client *rlx_open(const rlx_config *config, char why[256]);
/* Connect now. Otherwise the first rlx_init connects. */
int rlx_connect(rlx_client *client);
/* Begin an episode in every environment. `partial` may be NULL; true: an episode continues. */
int rlx_init(rlx_client *client, const void *const *observation, const uint8_t *partial);
/* Send an outcome and receive the next actions. The client sets `first` of NEXT_STEP; rewards are void there. */
int rlx_step(rlx_client *client, const rlx_outcome *outcome);
/* The same with out_of_step. `idle`: N, or NULL; true: no action is wanted. The observation is ignored there, except the
 * final one of NEXT_STEP. The client sets `first` where an environment was away: rewards are void there. */
int rlx_init_idle(rlx_client *client, const void *const *observation, const uint8_t *partial, const uint8_t *idle);
int rlx_step_idle(rlx_client *client, const rlx_outcome *outcome, const uint8_t *idle);
/* End the episode of every environment. Their returns are in rlx_returns. */
int rlx_reset(rlx_client *client, const rlx_outcome *outcome);
/* The same with chosen_actions. `chosen`: N, or NULL; true: the environment took another action than the agent's. It is in
 * `action`, a batch of leaves, whose other rows are ignored. `idle`: as above, or NULL. */
int rlx_step_chosen(rlx_client *client, const rlx_outcome *outcome, const uint8_t *idle, const uint8_t *chosen,
                    const void *const *action);
int rlx_reset_chosen(rlx_client *client, const rlx_outcome *outcome, const uint8_t *chosen, const void *const *action);
/* With environment_parameters: connect if necessary, and set `parameters` and `count` to the server's parameters for each
 * environment's next episode. Each call that receives actions or connects may change them: read them before an environment
 * begins an episode. If they were not read on the present connection, rlx_init sends all episodes as partial. */
int rlx_parameters(rlx_client *client, const rlx_parameter **parameters, size_t *count);
/* Add a scalar to the next message, with a valid name ("a b" becomes a_b). Returns 1, or 0 if it is dropped: it exceeds
 * the server's limits, or there is no connection. */
int rlx_metric(rlx_client *client, const char *name, double value);
/* Send a ping, for a simulation that is slower than the server's idle timeout. */
int rlx_alive(rlx_client *client);
/* Send bye, disconnect, and free the memory. */
void rlx_close(rlx_client *client);

const void *rlx_action(const rlx_client *client, size_t leaf); /* N x its elements, aligned */
const double *rlx_returns(const rlx_client *client);
const char *rlx_reason(const rlx_client *client);              /* the text of the last call that was not RLX_OK */
int rlx_code(const rlx_client *client);                        /* its error code (section 9), or 0 */
const char *rlx_session(const rlx_client *client);
const char *rlx_algorithm(const rlx_client *client);
uint64_t rlx_global_step(const rlx_client *client);            /* after RLX_FINISHED */

#ifdef __cplusplus
}
#endif
#endif

#ifdef RLX_IMPLEMENTATION
#undef RLX_IMPLEMENTATION
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rlx.h sends arrays as they are in memory: it requires a little-endian machine"
#endif
#ifdef MSG_NOSIGNAL
#define RLX__SEND_FLAGS MSG_NOSIGNAL
#else
#define RLX__SEND_FLAGS 0
#endif

enum { RLX__HANDSHAKE = 65536, RLX__LEAVES = 256, RLX__NAMES = 1024, RLX__SCALARS = 4096, RLX__PARAMETERS = 64 };
enum { RLX__NUMBERS = 2048 }; /* bytes that the parameters of an environment add to a message */
enum { RLX__MALFORMED = 1, RLX__FRAME_TOO_LARGE, RLX__UNEXPECTED, RLX__VERSION, RLX__SPACE = 6, RLX__VALUE = 8, RLX__LIMIT };
/* The expected message, with its number in ServerMessage, and the states between messages. */
enum { RLX__CLOSED = 0, RLX__WELCOME = 1, RLX__ACTIONS = 2, RLX__RETURNS = 3, RLX__PONG = 7, RLX__IDLE, RLX__STEP };
enum { RLX__HELLO = 1, RLX__INIT, RLX__STEPPED, RLX__RESET, RLX__METRICS, RLX__PING, RLX__PONGED, RLX__BYE };

typedef struct rlx__leaf { const rlx_space *space; int dtype; uint32_t shape[8]; size_t axes, elements, size; } rlx__leaf;
typedef struct rlx__value { rlx__leaf leaf[RLX__LEAVES]; size_t count, size; } rlx__value; /* size: bytes of one environment */
typedef struct rlx__in { const uint8_t *at, *end; } rlx__in;
typedef struct rlx__field { uint32_t number, type; uint64_t integer; rlx__in bytes; } rlx__field;

struct rlx_client {
    rlx_config config;
    rlx_transport transport;
    void *connection;
    int state, broken, answered, lost, finished, code, failures; /* broken: writes are no longer possible */
    int parameters_read;                     /* on this connection */
    unsigned asked, lacking;                 /* capabilities: bits 0 to 2 are fields 6 to 8 of the welcome */
    size_t address, limit, expected;         /* limit: of a frame; expected: the longest frame that this client accepts */
    double silence, retry_after, since;
    uint32_t name_bytes, name_limit, name_count;
    uint64_t names[RLX__NAMES], global_step, random;
    rlx__value observation, action;
    uint8_t *in, *out, *at, *actions, *between, *ended, *cut, *habit, *rows; /* rows: a mask for the moment */
    size_t in_from, in_to, in_size, out_size, scalar_size;
    const void *action_at[RLX__LEAVES];
    double *returns, *values;                /* values: N for each parameter */
    rlx_parameter parameter[RLX__PARAMETERS];
    size_t parameters;
    char parameter_name[RLX__PARAMETERS][257];
    uint8_t scalars[RLX__SCALARS];
    char session[132], algorithm[260], where[256], reason[512]; /* where: the current address */
};

static const size_t rlx__sizes[13] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8};

/* --- POSIX sockets ------------------------------------------------------------------------------------------------ */
static double rlx__now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rlx__patience(int fd, int option, double seconds) {
    struct timeval t;
    t.tv_sec = (time_t)seconds;
    t.tv_usec = (suseconds_t)((seconds - (double)t.tv_sec) * 1e6) + 1;
    setsockopt(fd, SOL_SOCKET, option, &t, sizeof t);
}

static int rlx__reach(const struct addrinfo *to) {
    int fd = socket(to->ai_family, to->ai_socktype, to->ai_protocol), one = 1, failed = 0;
    socklen_t size = sizeof failed;
    struct pollfd ready;
    double until = rlx__now() + 10, left;
    if (fd < 0) return -1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    ready.fd = fd, ready.events = POLLOUT, ready.revents = 0;
    if (connect(fd, to->ai_addr, to->ai_addrlen) < 0) {
        failed = errno != EINPROGRESS;
        while (!failed && (left = until - rlx__now()) > 0 && poll(&ready, 1, (int)(left * 1e3) + 1) < 0) failed = errno != EINTR;
        if (failed || ready.revents == 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) < 0 || failed != 0)
            return close(fd), -1;
    }
    fcntl(fd, F_SETFL, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    rlx__patience(fd, SO_SNDTIMEO, 60);
    return fd;
}

typedef struct rlx__socket { int fd; double seconds; } rlx__socket;

static void *rlx__socket_open(void *context, const char *host, const char *port) {
    struct addrinfo hints, *found, *to;
    rlx__socket *s = (rlx__socket *)context;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &found) != 0) return NULL;
    for (s->fd = -1, to = found; to != NULL && s->fd < 0; to = to->ai_next) s->fd = rlx__reach(to);
    freeaddrinfo(found);
    s->seconds = 0;
    return s->fd < 0 ? NULL : s;
}

static ptrdiff_t rlx__socket_read(void *connection, void *data, size_t size, double seconds) {
    rlx__socket *s = (rlx__socket *)connection;
    double until = rlx__now() + seconds;
    ptrdiff_t got;
    do { /* a signal interrupts the wait: continue with the rest */
        if (seconds != s->seconds) rlx__patience(s->fd, SO_RCVTIMEO, s->seconds = seconds);
        got = recv(s->fd, data, size, 0);
    } while (got < 0 && errno == EINTR && (seconds = until - rlx__now()) > 0);
    return got;
}

static int rlx__socket_write(void *connection, const void *data, size_t size) {
    const uint8_t *from = (const uint8_t *)data;
    double until = rlx__now() + 60;
    while (size > 0) {
        ptrdiff_t sent = send(((rlx__socket *)connection)->fd, from, size, RLX__SEND_FLAGS);
        if (sent < 0 && errno == EINTR && rlx__now() < until) continue;
        if (sent <= 0) return -1;
        from += sent, size -= (size_t)sent, until = rlx__now() + 60;
    }
    return 0;
}

static void rlx__socket_close(void *connection, int linger) {
    uint8_t rest[512];
    double until = rlx__now() + 1;
    rlx__socket *s = (rlx__socket *)connection;
    shutdown(s->fd, SHUT_WR);
    while (linger && rlx__now() < until && rlx__socket_read(s, rest, sizeof rest, 0.5) > 0) {}
    close(s->fd);
}

/* --- Errors ------------------------------------------------------------------------------------------------------- */
static int rlx__say(rlx_client *c, int code, int verdict, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(c->reason, sizeof c->reason, format, rest);
    va_end(rest);
    c->code = code;
    c->lost |= verdict == RLX_INTERRUPTED;
    return verdict;
}

static void rlx__hang_up(rlx_client *c, int linger) {
    if (c->state != RLX__CLOSED) c->transport.close(c->connection, linger);
    c->state = RLX__CLOSED, c->broken = 0, c->in_from = c->in_to = c->scalar_size = 0;
}

/* --- Writing: back to front, so that the length of a part is known before it is written ---------------------------- */
static void rlx__put(rlx_client *c, const void *data, size_t size) {
    if (c->at == NULL || size > (size_t)(c->at - c->out)) c->at = NULL; /* no room: rlx__send reports it */
    else if (size > 0) memcpy(c->at -= size, data, size);
}

static void rlx__put_varint(rlx_client *c, uint64_t value) {
    uint8_t bytes[10];
    size_t n = 0;
    do bytes[n++] = (uint8_t)((value & 127) | (value > 127 ? 128 : 0)); while ((value >>= 7) != 0);
    rlx__put(c, bytes, n);
}

static void rlx__put_integer(rlx_client *c, unsigned field, uint64_t value) {
    if (value == 0) return;
    rlx__put_varint(c, value);
    rlx__put_varint(c, field << 3);
}

static void rlx__put_bytes(rlx_client *c, unsigned field, const void *data, size_t size) {
    rlx__put(c, data, size);
    rlx__put_varint(c, size);
    rlx__put_varint(c, field << 3 | 2);
}

static void rlx__put_text(rlx_client *c, unsigned field, const char *text) {
    if (text != NULL && *text != 0) rlx__put_bytes(c, field, text, strlen(text));
}

/* Wrap the output since `end` in a field. */
static void rlx__put_part(rlx_client *c, unsigned field, const uint8_t *end) {
    if (c->at == NULL) return;
    rlx__put_varint(c, (uint64_t)(end - c->at));
    rlx__put_varint(c, field << 3 | 2);
}

static void rlx__put_shape(rlx_client *c, unsigned field, const uint32_t *shape, size_t axes, uint32_t n) {
    const uint8_t *end = c->at;
    if (axes == 0 && n == 0) return;
    while (axes-- > 0) rlx__put_varint(c, shape[axes]);
    if (n > 0) rlx__put_varint(c, n);
    rlx__put_part(c, field, end);
}

/* With or without the bounds of boxes. */
static void rlx__put_space(rlx_client *c, unsigned field, const rlx_space *s, int bounds) {
    const uint8_t *end = c->at, *entry;
    size_t i;
    if (s->kind == RLX_BOX) {
        if (bounds && s->highs > 0) rlx__put_bytes(c, 4, s->high, 8 * s->highs);
        if (bounds && s->lows > 0) rlx__put_bytes(c, 3, s->low, 8 * s->lows);
        rlx__put_shape(c, 2, s->shape, s->axes, 0);
        rlx__put_integer(c, 1, (uint64_t)s->dtype);
    } else if (s->kind == RLX_DISCRETE) {
        rlx__put_integer(c, 2, (uint64_t)s->start);
        rlx__put_integer(c, 1, (uint64_t)s->n);
    } else if (s->kind == RLX_MULTI_DISCRETE) {
        for (i = s->axes; i-- > 0;) rlx__put_varint(c, (uint64_t)s->nvec[i]);
        rlx__put_part(c, 1, end);
    } else if (s->kind == RLX_MULTI_BINARY) {
        rlx__put_shape(c, 1, s->shape, s->axes, 0);
    } else {
        for (i = s->parts; i-- > 0;) {
            entry = c->at;
            rlx__put_space(c, s->kind == RLX_DICT ? 2 : 1, &s->spaces[i], bounds);
            if (s->kind != RLX_DICT) continue;
            rlx__put_text(c, 1, s->keys[i]);
            rlx__put_part(c, 1, entry);
        }
    }
    rlx__put_part(c, (unsigned)s->kind, end);
    rlx__put_part(c, field, end);
}

static void rlx__put_leaves(rlx_client *c, unsigned field, const rlx__value *v, const void *const *leaves) {
    size_t i;
    if (leaves == NULL) return;
    for (i = v->count; i-- > 0;) {
        const rlx__leaf *leaf = &v->leaf[i];
        const uint8_t *end = c->at;
        rlx__put_bytes(c, 3, leaves[i], leaf->size * c->config.environments);
        rlx__put_shape(c, 2, leaf->shape, leaf->axes, c->config.environments);
        rlx__put_integer(c, 1, (uint64_t)leaf->dtype);
        rlx__put_part(c, field, end);
    }
}

static int rlx__on(const uint8_t *mask, uint32_t i) { return mask != NULL && mask[i] != 0; }

static int rlx__any(const rlx_client *c, const uint8_t *mask) {
    uint32_t i = 0;
    while (i < c->config.environments && !rlx__on(mask, i)) i++;
    return i < c->config.environments;
}

static void rlx__put_mask(rlx_client *c, unsigned field, const uint8_t *mask) {
    uint32_t i;
    const uint8_t *end = c->at;
    if (!rlx__any(c, mask)) return;
    for (i = c->config.environments; i-- > 0;) rlx__put_varint(c, mask[i] != 0);
    rlx__put_part(c, field, end);
}

/* The actions of the client, in the field behind that of their mask. */
static void rlx__put_chosen(rlx_client *c, unsigned field, const uint8_t *chosen, const void *const *action) {
    if (rlx__any(c, chosen)) rlx__put_leaves(c, field + 1, &c->action, action);
    rlx__put_mask(c, field, chosen);
}

static void rlx__put_episodes(rlx_client *c, unsigned field, const rlx_outcome *o) {
    size_t i;
    for (i = o->episode_count; i-- > 0;) {
        const uint8_t *end = c->at;
        rlx__put_integer(c, 3, o->episodes[i].length);
        rlx__put(c, &o->episodes[i].episode_return, 8);
        rlx__put_varint(c, 2 << 3 | 1);
        rlx__put_integer(c, 1, o->episodes[i].environment);
        rlx__put_part(c, field, end);
    }
}

static void rlx__begin(rlx_client *c) { c->at = c->out + c->out_size; }

/* Wrap the content in a frame. Returns its size, which exceeds the limit if the server does not accept it. */
static size_t rlx__put_length(rlx_client *c, unsigned kind) {
    uint8_t length[4];
    size_t size, i;
    rlx__put_part(c, kind, c->out + c->out_size);
    size = c->at == NULL ? c->out_size + 1 : (size_t)(c->out + c->out_size - c->at);
    for (i = 0; i < 4; i++) length[i] = (uint8_t)(size >> (24 - 8 * i));
    rlx__put(c, length, 4);
    return size;
}

static int rlx__last_words(rlx_client *c);

/* Wrap the content in a frame, and write it and the pending scalars in one call. */
static int rlx__send(rlx_client *c, unsigned kind) {
    if (rlx__put_length(c, kind) > c->limit)
        return rlx__say(c, RLX__LIMIT, RLX_INVALID, "the message is longer than the server accepts");
    rlx__put(c, c->scalars, c->scalar_size), c->scalar_size = 0;
    if (c->at != NULL && c->transport.write(c->connection, c->at, (size_t)(c->out + c->out_size - c->at)) == 0)
        return RLX_OK;
    return rlx__last_words(c);
}

static int rlx__bye(rlx_client *c, const char *reason) {
    rlx__begin(c);
    rlx__put_text(c, 1, reason);
    return rlx__send(c, RLX__BYE);
}

static void rlx__leave(rlx_client *c, const char *reason) {
    c->broken = 1, c->scalar_size = 0, rlx__bye(c, reason);
    rlx__hang_up(c, 0);
}

static int rlx__mistake(rlx_client *c, int code, const char *what) {
    int verdict = c->answered ? RLX_INTERRUPTED : RLX_FAILED; /* section 9 */
    if (c->broken) return RLX_INTERRUPTED;
    rlx__leave(c, what);
    if (verdict == RLX_FAILED) return rlx__say(c, code, verdict, "%s: the server's mistake: %s: is it an RLX server?", c->where, what);
    return rlx__say(c, code, verdict, "the server's mistake: %s", what);
}

/* --- Reading ------------------------------------------------------------------------------------------------------ */
static int rlx__varint(rlx__in *in, uint64_t *value) {
    unsigned shift;
    for (*value = 0, shift = 0; shift < 70 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* Read the next field. Returns 1, 0 at the end, -1 if it is not valid Protobuf. A group is unknown and skipped. */
static int rlx__next(rlx__in *in, rlx__field *f, int depth) {
    uint64_t tag, size = 0;
    if (in->at == in->end) return 0;
    if (!rlx__varint(in, &tag) || tag >> 3 == 0 || tag >> 32 != 0 || depth > 100) return -1;
    f->number = (uint32_t)(tag >> 3), f->type = tag & 7, f->integer = 0;
    f->bytes.at = f->bytes.end = in->at;
    if (f->type == 0) return rlx__varint(in, &f->integer) ? 1 : -1;
    if (f->type == 1) size = 8;
    else if (f->type == 5) size = 4;
    else if (f->type == 3) {
        rlx__field inner;
        int more;
        while ((more = rlx__next(in, &inner, depth + 1)) == 1 && inner.type != 4) {}
        return more == 1 && inner.number == f->number ? 1 : -1;
    } else if (f->type == 4) return depth > 0 ? 1 : -1;
    else if (f->type != 2 || !rlx__varint(in, &size)) return -1;
    if (size > (size_t)(in->end - in->at)) return -1;
    f->bytes.at = in->at, f->bytes.end = in->at += size;
    return 1;
}

/* Take the next integer of a list, packed or not. Returns 1, 0 at its end, -1 if it is not valid Protobuf. */
static int rlx__take(rlx__field *f, uint64_t *integer) {
    if (f->type == 2) return f->bytes.at == f->bytes.end ? 0 : rlx__varint(&f->bytes, integer) ? 1 : -1;
    if (f->type != 0) return 0;
    *integer = f->integer, f->type = 2; /* and no bytes are left */
    return 1;
}

/* Copy a text of valid UTF-8, cut to `room`. Returns 0 if it is not valid. */
static int rlx__text(const rlx__field *f, char *to, size_t room) {
    const uint8_t *p = f->bytes.at, *end = f->bytes.end;
    size_t size = (size_t)(end - p), more, i;
    while (p < end) {
        uint32_t code = *p++;
        more = code < 0x80 ? 0 : code >= 0xc2 && code < 0xe0 ? 1 : code >= 0xe0 && code < 0xf0 ? 2
             : code >= 0xf0 && code < 0xf5 ? 3 : 9;
        if (more == 9 || (size_t)(end - p) < more) return 0;
        code = more == 0 ? code : code & (0x3fu >> more);
        for (i = 0; i < more; i++, p++) {
            if ((*p & 0xc0) != 0x80) return 0;
            code = code << 6 | (*p & 0x3f);
        }
        if ((more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
            (more == 3 && (code < 0x10000 || code > 0x10ffff))) return 0;
    }
    if (size >= room) size = room - 1;
    memcpy(to, f->bytes.at, size);
    to[size] = 0;
    return 1;
}

static double rlx__double(const uint8_t *at) {
    double value;
    memcpy(&value, at, 8);
    return value;
}

static int rlx__finite(double value, double most) { return value >= -most && value <= most; }

static double rlx__number(int dtype, const uint8_t *p) {
    uint16_t u2; uint32_t u4; uint64_t u8; int16_t i2; int32_t i4; int64_t i8; float f4; double f8;
    switch (dtype) {
    case RLX_BOOL: case RLX_UINT8: return *p;
    case RLX_UINT16: return memcpy(&u2, p, 2), u2;
    case RLX_UINT32: return memcpy(&u4, p, 4), u4;
    case RLX_UINT64: return memcpy(&u8, p, 8), (double)u8;
    case RLX_INT8: return *p < 128 ? *p : *p - 256;
    case RLX_INT16: return memcpy(&i2, p, 2), i2;
    case RLX_INT32: return memcpy(&i4, p, 4), i4;
    case RLX_INT64: return memcpy(&i8, p, 8), (double)i8;
    case RLX_FLOAT32: return memcpy(&f4, p, 4), f4;
    case RLX_FLOAT64: return memcpy(&f8, p, 8), f8;
    }
    memcpy(&u2, p, 2);
    u4 = u2 >> 10 & 31, f8 = u4 == 0 ? (u2 & 1023) / 16777216.0 : (1024 + (u2 & 1023)) * (double)(1u << u4) / 33554432.0;
    return u2 >> 15 ? -f8 : f8;
}

/* Whether a floating-point number is infinite or NaN, by its exponent: also correct under -ffast-math. */
static int rlx__infinite(int dtype, const uint8_t *p) {
    if (dtype == RLX_FLOAT16) return (p[1] & 0x7c) == 0x7c;
    if (dtype == RLX_FLOAT32) return (p[3] & 0x7f) == 0x7f && (p[2] & 0x80);
    return dtype == RLX_FLOAT64 && (p[7] & 0x7f) == 0x7f && (p[6] & 0xf0) == 0xf0;
}

/* Whether a value is below its bound (sign -1: above) by more than the rounding of bounds. Infinite bounds are ignored. */
static int rlx__beyond(const double *bounds, size_t count, size_t i, double value, double slack, int sign) {
    const double *bound = count == 0 ? NULL : &bounds[count == 1 ? 0 : i];
    if (bound == NULL || rlx__infinite(RLX_FLOAT64, (const uint8_t *)bound)) return 0;
    return sign * value < sign * *bound - slack * (*bound < 0 ? -*bound : *bound);
}

static int rlx__in_range(const rlx__leaf *leaf, const uint8_t *p, size_t i, int bounds) {
    static const double half_unit[3] = {1 / 2048.0, 1 / 16777216.0, 0};
    const rlx_space *s = leaf->space;
    double value, slack;
    int64_t integer = 0;
    if (rlx__infinite(leaf->dtype, p)) return 0;
    if (leaf->dtype == RLX_BOOL || s->kind == RLX_MULTI_BINARY) return *p <= 1;
    if (s->kind != RLX_BOX) {
        memcpy(&integer, p, 8);
        if (s->kind == RLX_MULTI_DISCRETE) return integer >= 0 && integer < s->nvec[i];
        return integer >= s->start && integer <= s->start + (s->n - 1);
    }
    if (!bounds || s->lows + s->highs == 0) return 1;
    value = rlx__number(leaf->dtype, p);
    slack = leaf->dtype >= RLX_FLOAT16 ? half_unit[leaf->dtype - RLX_FLOAT16] : 0; /* bounds are rounded to the dtype */
    return !rlx__beyond(s->low, s->lows, i, value, slack, 1) && !rlx__beyond(s->high, s->highs, i, value, slack, -1);
}

/* Whether the N values of a leaf are in its space; only those of `rows` if it is not NULL. Bounds of a box apply only to
 * actions. */
static int rlx__legal(const rlx__leaf *leaf, const void *data, uint32_t n, const uint8_t *rows, int bounds) {
    const uint8_t *p = (const uint8_t *)data;
    size_t size = rlx__sizes[leaf->dtype], i;
    uint32_t row;
    if (!bounds && leaf->space->kind == RLX_BOX && leaf->dtype > RLX_BOOL && leaf->dtype < RLX_FLOAT16) return 1;
    for (row = 0; row < n; row++)
        for (i = 0; i < leaf->elements; i++, p += size)
            if ((rows == NULL || rows[row]) && !rlx__in_range(leaf, p, i, bounds)) return 0;
    return 1;
}

static int rlx__read_array(rlx_client *c, rlx__in in, size_t index) {
    const rlx__leaf *leaf = &c->action.leaf[index];
    size_t axes = 0, size = leaf->size * c->config.environments;
    uint64_t axis, dtype = 0;
    int fits = 1, more, item = 0;
    rlx__in data = {NULL, NULL};
    rlx__field f;
    while (item == 0 && (more = rlx__next(&in, &f, 0)) == 1) {
        if (f.number == 1 && f.type == 0) dtype = f.integer;
        else if (f.number == 3 && f.type == 2) data = f.bytes;
        else if (f.number == 2)
            for (; (item = rlx__take(&f, &axis)) == 1; axes++)
                fits = fits && axes <= leaf->axes && axis == (axes == 0 ? c->config.environments : leaf->shape[axes - 1]);
    }
    if (item < 0 || more < 0) return RLX__MALFORMED;
    if (!fits || axes != leaf->axes + 1 || dtype != (uint64_t)leaf->dtype || (size_t)(data.end - data.at) != size)
        return RLX__VALUE;
    if (!rlx__legal(leaf, data.at, c->config.environments, NULL, 1)) return RLX__VALUE;
    memcpy((uint8_t *)c->action_at[index], data.at, size); /* data in a frame may be unaligned: copy them */
    return 0;
}

/* Read a list of numbers, `size` for each environment, or only for those of `rows` if it is not NULL. In `to`, the numbers
 * of one environment are N apart. */
static int rlx__read_numbers(rlx_client *c, rlx__in in, uint32_t field, double *to, size_t size, const uint8_t *rows) {
    size_t n = c->config.environments, all = n * size, i = 0; /* i: the place in a list for all environments */
    const uint8_t *p;
    int more;
    rlx__field f;
    while ((more = rlx__next(&in, &f, 0)) == 1) {
        if (f.number != field || (f.type != 1 && f.type != 2)) continue;
        if ((f.bytes.end - f.bytes.at) % 8 != 0) return RLX__MALFORMED;
        for (p = f.bytes.at; p < f.bytes.end; p += 8, i++) {
            while (i < all && rows != NULL && !rows[i / size]) i += size;
            if (i == all || rlx__infinite(RLX_FLOAT64, p) || !rlx__finite(rlx__double(p), 1e30)) return RLX__VALUE;
            to[i % size * n + i / size] = rlx__double(p);
        }
    }
    while (i < all && rows != NULL && !rows[i / size]) i += size;
    return more < 0 ? RLX__MALFORMED : i == all ? 0 : RLX__VALUE;
}

static int rlx__read_actions(rlx_client *c, rlx__in in) {
    size_t leaves = 0;
    uint64_t row, least = 0; /* of the next row */
    int more, item, wrong;
    rlx__in all = in;
    rlx__field f;
    memset(c->rows, 0, c->config.environments);
    while ((more = rlx__next(&in, &f, 0)) == 1) {
        if (f.number == 2) {
            for (; (item = rlx__take(&f, &row)) == 1; c->rows[row] = 1, least = row + 1)
                if (!c->config.environment_parameters || row < least || row >= c->config.environments) return RLX__VALUE;
            if (item < 0) return RLX__MALFORMED;
        }
        if (f.number != 1 || f.type != 2) continue;
        if (leaves == c->action.count) return RLX__VALUE;
        if ((wrong = rlx__read_array(c, f.bytes, leaves++)) != 0) return wrong;
    }
    if (more < 0) return RLX__MALFORMED;
    return leaves == c->action.count ? rlx__read_numbers(c, all, 3, c->values, c->parameters, c->rows) : RLX__VALUE;
}

/* At most 128 letters, digits, _ and -. */
static int rlx__is_session(rlx__in text) {
    const uint8_t *p;
    if (text.end - text.at > 128) return 0;
    for (p = text.at; p < text.end; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '-')) return 0;
    return 1;
}

/* Add a parameter: its name has 1 to 256 bytes, without control characters, and is new. */
static int rlx__read_name(rlx_client *c, const rlx__field *f) {
    const uint8_t *p;
    char *name;
    size_t i;
    if (c->parameters == RLX__PARAMETERS || f->bytes.end - f->bytes.at > 256) return RLX__LIMIT;
    name = c->parameter_name[c->parameters];
    if (!rlx__text(f, name, sizeof *c->parameter_name)) return RLX__MALFORMED;
    for (p = f->bytes.at; p < f->bytes.end; p++)
        if (*p < 32 || *p == 127 || (*p == 0xc2 && p[1] < 0xa0)) return RLX__VALUE;
    for (i = 0; i < c->parameters; i++) if (strcmp(c->parameter[i].name, name) == 0) return RLX__VALUE;
    if (*name == 0) return RLX__VALUE;
    c->parameter[c->parameters++].name = name;
    return 0;
}

static int rlx__read_welcome(rlx_client *c, rlx__in in) {
    uint64_t version = 0, frame = 0, name_bytes = 0, names = 0, twice = 1, n = c->config.environments, i;
    unsigned granted = 0;
    double heartbeat = 0, idle = 0;
    int more, inner = 1, wrong;
    char unused[8];
    rlx__in all = in;
    rlx__field f, g, session;
    session.bytes.at = session.bytes.end = NULL, c->parameters = 0, c->parameters_read = 0;
    while ((more = rlx__next(&in, &f, 0)) == 1) {
        if (f.number == 1 && f.type == 0) version = (uint32_t)f.integer;
        else if (f.number == 2 && f.type == 2 && !rlx__text(&f, unused, sizeof unused)) return RLX__MALFORMED;
        else if (f.number == 3 && f.type == 2 && !rlx__text(&f, unused, sizeof unused)) return RLX__MALFORMED;
        else if (f.number == 4 && f.type == 2 && !rlx__text(&f, c->algorithm, sizeof c->algorithm)) return RLX__MALFORMED;
        else if (f.number == 3 && f.type == 2) session = f;
        else if (f.number >= 6 && f.number <= 8 && f.type == 0)
            granted = (granted & ~(1u << (f.number - 6))) | (unsigned)(f.integer != 0) << (f.number - 6);
        else if (f.number == 9 && f.type == 2 && (wrong = rlx__read_name(c, &f)) != 0) return wrong;
        else if (f.number == 5 && f.type == 2)
            while ((inner = rlx__next(&f.bytes, &g, 0)) == 1) {
                if (g.number == 1 && g.type == 0) frame = (uint32_t)g.integer;
                else if (g.number == 2 && g.type == 1) idle = rlx__infinite(RLX_FLOAT64, g.bytes.at) ? 0 : rlx__double(g.bytes.at);
                else if (g.number == 3 && g.type == 1) heartbeat = rlx__infinite(RLX_FLOAT64, g.bytes.at) ? 0 : rlx__double(g.bytes.at);
                else if (g.number == 4 && g.type == 0) name_bytes = (uint32_t)g.integer;
                else if (g.number == 5 && g.type == 0) names = (uint32_t)g.integer;
            }
        if (inner < 0) return RLX__MALFORMED;
    }
    if (more < 0) return RLX__MALFORMED;
    if (version != 1) return RLX__VERSION;
    if (!(idle > 0 && heartbeat > 0) || !rlx__is_session(session.bytes) || (granted & ~c->asked)) return RLX__VALUE;
    if (c->parameters > 0 && !(granted & 4)) return RLX__VALUE;
    if ((wrong = rlx__read_numbers(c, all, 10, c->values, c->parameters, NULL)) != 0) return wrong;
    for (i = 0; i < c->parameters; i++) c->parameter[i].values = c->values + i * n;
    for (i = 0; i < n; i++) if (c->habit[i] == RLX_SAME_STEP) twice = 2;
    if (frame < n * (twice * c->observation.size + (c->config.chosen_actions ? c->action.size : 0)) ||
        frame < n * c->action.size) return RLX__LIMIT;
    if ((c->lacking = c->asked & ~granted) != 0) return RLX__SPACE;
    c->session[0] = 0;
    if (session.bytes.at) rlx__text(&session, c->session, sizeof c->session);
    c->limit = (size_t)frame, c->silence = heartbeat < 5 / 3. ? 5 : heartbeat < 1e5 ? 3 * heartbeat : 3e5;
    c->name_bytes = (uint32_t)name_bytes, c->name_limit = (uint32_t)(names < RLX__NAMES ? names : (uint64_t)RLX__NAMES), c->name_count = 0;
    return 0;
}

/* Process the server's last message: an error, the end of training, or a bye. */
static int rlx__farewell(rlx_client *c, uint32_t kind, rlx__in in) {
    char text[200] = "";
    uint64_t code = 0, retryable = kind == 8, step = 0;
    double after = 0;
    int more, timed = 1;
    rlx__field f;
    while ((more = rlx__next(&in, &f, 0)) == 1) {
        if (f.number == (kind == 4 ? 2u : 1u) && f.type == 2) {
            if (!rlx__text(&f, text, sizeof text)) return rlx__mistake(c, RLX__MALFORMED, "a text is not valid UTF-8");
        } else if (kind == 4 && f.number == 1 && f.type == 0) code = f.integer;
        else if (kind == 4 && f.number == 3 && f.type == 0) retryable = f.integer != 0;
        else if (kind == 4 && f.number == 4 && f.type == 1)
            after = rlx__double(f.bytes.at), timed = !rlx__infinite(RLX_FLOAT64, f.bytes.at) && after >= 0;
        else if (kind == 5 && f.number == 2 && f.type == 0) step = f.integer;
    }
    if (more < 0) return rlx__mistake(c, RLX__MALFORMED, "a frame is not valid Protobuf");
    if (!timed) return rlx__mistake(c, RLX__VALUE, "an error with an invalid retry_after_seconds");
    rlx__hang_up(c, 0);
    if (kind == 5) {
        c->finished = 1, c->global_step = step;
        return rlx__say(c, 0, RLX_FINISHED, "%s", text[0] ? text : "training has finished");
    }
    c->retry_after = after > 1e9 ? 1e9 : after;
    if (kind == 8) return rlx__say(c, 0, RLX_INTERRUPTED, "the server sent bye (%s)", text[0] ? text : "no reason given");
    return rlx__say(c, (int)(code & 0x7fffffff), retryable ? RLX_INTERRUPTED : RLX_FAILED, "%s", text[0] ? text : "an error");
}

/* Return 1 and the next whole frame; 0 if it has not arrived. Its length is checked before its body is read. */
static int rlx__frame(rlx_client *c, rlx__in *frame, int *verdict) {
    static const uint8_t settings[] = {4, 0, 0, 0, 0, 0}; /* of gRPC, after 3 bytes. No RLX payload begins with a zero byte */
    const uint8_t *p = c->in + c->in_from;
    size_t there = c->in_to - c->in_from, size, most = c->limit < c->expected ? c->limit : c->expected;
    char what[80];
    if (there < 4) return 0;
    if (!c->answered && there >= 9 && memcmp(p + 3, settings, sizeof settings) == 0) {
        rlx__hang_up(c, 0);
        return *verdict = rlx__say(c, RLX__MALFORMED, RLX_FAILED, "%s: this port speaks gRPC, like the ports of parameter and replay servers: "
            "connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)", c->where), -1;
    }
    size = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
    if (size == 0) return *verdict = rlx__mistake(c, RLX__MALFORMED, "a frame of length 0"), -1;
    if (size > most) {
        snprintf(what, sizeof what, "a frame of %zu bytes; the limit is %zu", size, most);
        return *verdict = rlx__mistake(c, RLX__FRAME_TOO_LARGE, what), -1;
    }
    if (there < 4 + size) return 0;
    frame->at = p + 4, frame->end = p + 4 + size;
    c->in_from += 4 + size;
    return 1;
}

/* Process one frame. `due`: the expected message, 0 if none. If it arrived, *got is set. */
static int rlx__look(rlx_client *c, rlx__in in, uint32_t due, int *got) {
    static const char *const capabilities[3][2] = {{"out_of_step", "environments out of step"},
        {"chosen_actions", "actions of the client"}, {"environment_parameters", "parameters of environments"}};
    rlx__field f, found;
    int more, wrong = 0;
    uint64_t nonce = 0;
    char what[80];
    memset(&found, 0, sizeof found);
    while ((more = rlx__next(&in, &f, 0)) == 1) {
        if (f.number > 8 || f.type != 2) continue;
        if (found.number != 0) return rlx__mistake(c, RLX__MALFORMED, "two messages in one frame");
        found = f;
    }
    if (more < 0) return rlx__mistake(c, RLX__MALFORMED, "a frame is not valid Protobuf");
    if (found.number == 4 || found.number == 5 || found.number == 8) return rlx__farewell(c, found.number, found.bytes);
    if (c->broken) return RLX_OK; /* other messages no longer matter */
    if (found.number == 6 || found.number == 7) {
        while ((more = rlx__next(&found.bytes, &f, 0)) == 1)
            if (f.number == 1 && f.type == 0) nonce = (uint32_t)f.integer;
        if (more < 0) return rlx__mistake(c, RLX__MALFORMED, "a frame is not valid Protobuf");
        *got = found.number == due;
        if (found.number == 7) return RLX_OK;
        rlx__begin(c);
        rlx__put_integer(c, 1, nonce);
        return rlx__send(c, RLX__PONGED);
    }
    if (found.number == 0 || found.number != due)
        return rlx__mistake(c, RLX__UNEXPECTED, "a message that is not allowed now");
    if (due == RLX__WELCOME) wrong = rlx__read_welcome(c, found.bytes);
    else if (due == RLX__ACTIONS) wrong = rlx__read_actions(c, found.bytes);
    else wrong = rlx__read_numbers(c, found.bytes, 1, c->returns, 1, NULL);
    if (wrong == RLX__SPACE) {
        const char *const *lacking = capabilities[c->lacking & 1 ? 0 : c->lacking & 2 ? 1 : 2];
        snprintf(what, sizeof what, "the welcome lacks %s", lacking[0]);
        rlx__leave(c, what);
        return rlx__say(c, wrong, RLX_FAILED, "%s: the server or its algorithm does not support %s: use another algorithm, "
                        "or do not set %s", c->where, lacking[1], lacking[0]);
    }
    if (wrong != 0) return rlx__mistake(c, wrong, due == RLX__WELCOME ? "an invalid welcome" : "an answer with an invalid value");
    *got = 1;
    return RLX_OK;
}

/* Read bytes into the buffer. Returns what `read` of the transport returns. */
static ptrdiff_t rlx__read(rlx_client *c, double seconds) {
    ptrdiff_t read;
    memmove(c->in, c->in + c->in_from, c->in_to - c->in_from);
    c->in_to -= c->in_from, c->in_from = 0;
    read = c->transport.read(c->connection, c->in + c->in_to, c->in_size - c->in_to, seconds);
    if (read > 0) c->in_to += (size_t)read;
    return read;
}

/* Read and process frames until the expected answer arrives; the next call processes the frames behind it. `due` 0:
 * process the whole frames that have arrived, without reading. */
static int rlx__hear(rlx_client *c, uint32_t due) {
    int came = 0, verdict = RLX_OK, whole;
    const char *ended;
    ptrdiff_t read;
    rlx__in frame;
    for (;;) {
        while ((whole = rlx__frame(c, &frame, &verdict)) == 1) {
            if ((verdict = rlx__look(c, frame, due, &came)) != RLX_OK || (came && due != 0)) return verdict;
        }
        if (whole < 0 || due == 0) return verdict;
        if ((read = rlx__read(c, c->silence)) > 0) continue;
        rlx__hang_up(c, 0);
        ended = read == 0 ? "the server's stream ended" : "the server is unreachable or silent";
        if (due != RLX__WELCOME) return rlx__say(c, 0, RLX_INTERRUPTED, "%s", ended);
        return rlx__say(c, 0, RLX_INTERRUPTED, "%s: no welcome: %s: is it an RLX server%s?", c->where, ended,
                        c->transport.open == rlx__socket_open ? " without TLS" : "");
    }
}

/* After a failed write: the server's last message may still be readable, and has the reason. */
static int rlx__last_words(rlx_client *c) {
    double until = rlx__now() + 1;
    int verdict;
    if (c->broken) return RLX_INTERRUPTED; /* the client's own bye failed */
    c->broken = 1;
    do verdict = rlx__hear(c, 0); while (verdict == RLX_OK && rlx__now() < until && rlx__read(c, 0.5) > 0);
    if (c->state == RLX__CLOSED) return verdict;
    rlx__hang_up(c, 0);
    return rlx__say(c, 0, RLX_INTERRUPTED, "the connection was lost while writing");
}

/* --- The client --------------------------------------------------------------------------------------------------- */
/* Add the leaves of a space to `v`, those of a dict in the order of the bytes of their keys. Returns NULL or an error. */
static const char *rlx__flatten(const rlx_space *s, rlx__value *v, int depth) {
    rlx__leaf *leaf = &v->leaf[v->count];
    size_t i, j, least;
    const char *wrong, *last = NULL;
    if (depth > 16) return "a space is nested more than 16 deep";
    if (s->kind == RLX_TUPLE || s->kind == RLX_DICT) {
        if (s->parts == 0 || s->parts > RLX__LEAVES) return "a tuple or dict must have 1 to 256 parts";
        for (i = 0; i < s->parts; i++) {
            least = s->kind == RLX_TUPLE ? i : s->parts;
            for (j = 0; s->kind == RLX_DICT && j < s->parts; j++)
                if ((last == NULL || strcmp(s->keys[j], last) > 0) &&
                    (least == s->parts || strcmp(s->keys[j], s->keys[least]) < 0)) least = j;
            if (least == s->parts) return "a key of a dict appears twice";
            if (s->kind == RLX_DICT) last = s->keys[least];
            if ((wrong = rlx__flatten(&s->spaces[least], v, depth + 1)) != NULL) return wrong;
        }
        return NULL;
    }
    if (v->count == RLX__LEAVES) return "a space has more than 256 leaves";
    memset(leaf, 0, sizeof *leaf);
    leaf->space = s, leaf->elements = 1;
    leaf->dtype = s->kind == RLX_BOX ? s->dtype : s->kind == RLX_MULTI_BINARY ? RLX_INT8 : RLX_INT64;
    if (s->kind < RLX_BOX || s->kind > RLX_DICT || leaf->dtype < RLX_BOOL || leaf->dtype > RLX_FLOAT64)
        return "a space of an unknown kind or dtype";
    if (s->kind == RLX_DISCRETE && (s->n < 1 || s->start > INT64_MAX - (s->n - 1))) return "a discrete with an invalid n or start";
    if (s->kind == RLX_MULTI_DISCRETE) {
        if (s->axes < 1 || s->axes > INT32_MAX) return "nvec must have at least one element";
        for (i = 0; i < s->axes; i++) if (s->nvec[i] < 1) return "an element of nvec is below 1";
        leaf->axes = 1, leaf->shape[0] = (uint32_t)s->axes, leaf->elements = s->axes;
    } else if (s->kind != RLX_DISCRETE) {
        if (s->axes > 8) return "a space has more than 8 axes";
        for (i = 0; i < s->axes; i++) {
            if (s->shape[i] < 1 || leaf->elements > INT32_MAX / s->shape[i]) return "a shape has too few or too many elements";
            leaf->shape[leaf->axes++] = s->shape[i], leaf->elements *= s->shape[i];
        }
    }
    if (s->kind == RLX_BOX && ((s->lows > 1 && s->lows != leaf->elements) || (s->highs > 1 && s->highs != leaf->elements)))
        return "a box must have one bound, one for each element, or none";
    for (i = 0; s->kind == RLX_BOX && i < leaf->elements && s->lows > 0 && s->highs > 0; i++)
        if (!(s->low[s->lows > 1 ? i : 0] <= s->high[s->highs > 1 ? i : 0])) return "a low of a box exceeds its high";
    leaf->size = leaf->elements * rlx__sizes[leaf->dtype];
    v->size += leaf->size, v->count++;
    return NULL;
}

static const char *rlx__prepare(rlx_client *c) {
    rlx_config *g = &c->config;
    const char *wrong;
    size_t i, n, actions = 0;
    if (g->addresses == NULL || *g->addresses == 0) return "the address is missing";
    if (g->environments == 0) g->environments = 1;
    if (g->mode == 0) g->mode = RLX_TRAIN;
    if (g->retry_seconds == 0) g->retry_seconds = 300;
    if (g->mode != RLX_TRAIN && g->mode != RLX_EXPLOIT) return "an unknown mode";
    if (g->environments > 65536 || (g->autoresets > 1 && g->autoresets != g->environments))
        return "use 1 to 65536 environments, and one autoreset mode for all or for each";
    for (i = 0; i < g->autoresets; i++)
        if (g->autoreset[i] < RLX_DISABLED || g->autoreset[i] > RLX_NEXT_STEP) return "an unknown autoreset mode";
    if ((wrong = rlx__flatten(&g->observation, &c->observation, 1)) != NULL) return wrong;
    if ((wrong = rlx__flatten(&g->action, &c->action, 1)) != NULL) return wrong;
    n = g->environments;
    if (c->observation.size > (SIZE_MAX >> 3) / n || c->action.size > (SIZE_MAX >> 3) / n) return "the spaces are too large";
    c->asked = (g->out_of_step ? 1u : 0) | (g->chosen_actions ? 2u : 0) | (g->environment_parameters ? 4u : 0);
    c->out_size = 2 * n * c->observation.size + 48 * n + 256 * c->observation.count + RLX__SCALARS + 2 * RLX__HANDSHAKE;
    if (g->chosen_actions) c->out_size += n * c->action.size + 256 * c->action.count;
    c->expected = n * c->action.size + 8 * n + 256 * c->action.count + RLX__HANDSHAKE; /* longer frames are refused */
    if (g->environment_parameters) c->expected += n * RLX__NUMBERS;
    c->in_size = c->expected + 4;
    for (i = 0; i < c->action.count; i++) actions += (c->action.leaf[i].size * n + 7) / 8 * 8;
    c->in = (uint8_t *)malloc(c->in_size), c->out = (uint8_t *)malloc(c->out_size);
    c->actions = (uint8_t *)calloc(1, actions), c->returns = (double *)calloc(n, sizeof(double));
    c->values = (double *)calloc(g->environment_parameters ? n * RLX__PARAMETERS : 1, sizeof(double));
    c->between = (uint8_t *)calloc(5, n), c->ended = c->between + n, c->cut = c->ended + n, c->habit = c->cut + n;
    c->rows = c->habit + n;
    if (!c->in || !c->out || !c->actions || !c->returns || !c->values || !c->between) return "there is not enough memory";
    for (i = 0; i < n; i++)
        c->habit[i] = (uint8_t)(g->autoresets == 0 ? RLX_DISABLED : g->autoreset[g->autoresets == 1 ? 0 : i]);
    for (actions = 0, i = 0; i < c->action.count; i++) {
        c->action_at[i] = c->actions + actions;
        actions += (c->action.leaf[i].size * n + 7) / 8 * 8;
    }
    return NULL;
}

static void rlx__free(rlx_client *c) {
    free(c->in), free(c->out), free(c->actions), free(c->returns), free(c->values), free(c->between);
    if (c->transport.open == rlx__socket_open) free(c->transport.context);
    free(c);
}

rlx_client *rlx_open(const rlx_config *config, char why[256]) {
    static const rlx_transport sockets = {NULL, rlx__socket_open, rlx__socket_read, rlx__socket_write, rlx__socket_close};
    rlx_client *c = (rlx_client *)calloc(1, sizeof *c);
    const char *wrong = "there is not enough memory";
    if (c != NULL) {
        c->config = *config, c->transport = config->transport != NULL ? *config->transport : sockets;
        if (config->transport == NULL) c->transport.context = calloc(1, sizeof(rlx__socket));
        if (config->session_id != NULL) snprintf(c->session, sizeof c->session, "%s", config->session_id);
        c->random = (uint64_t)(rlx__now() * 1e9) ^ (uint64_t)(uintptr_t)c;
        if ((wrong = rlx__prepare(c)) == NULL) return c;
        rlx__free(c);
    }
    snprintf(why, 256, "%s", wrong);
    return NULL;
}

/* Write a hello, with or without the bounds of observations. Returns whether it is short enough. */
static int rlx__put_hello(rlx_client *c, int bounds) {
    rlx_config *g = &c->config;
    const uint8_t *end;
    size_t i;
    rlx__begin(c);
    rlx__put_integer(c, 17, g->environment_parameters != 0);
    rlx__put_integer(c, 16, g->chosen_actions != 0);
    rlx__put_integer(c, 15, g->out_of_step != 0);
    rlx__put_integer(c, 14, g->reports_episodes != 0);
    rlx__put_text(c, 13, c->session);
    rlx__put_integer(c, 12, (uint64_t)g->mode);
    for (end = c->at, i = g->autoresets > 1 ? g->environments : 1; i-- > 0;) rlx__put_varint(c, c->habit[i]);
    rlx__put_part(c, 11, end);
    rlx__put_integer(c, 10, g->environments);
    rlx__put_space(c, 9, &g->action, 1);
    rlx__put_space(c, 8, &g->observation, bounds);
    rlx__put_integer(c, 7, g->frame_skip);
    rlx__put_text(c, 6, g->host);
    rlx__put_text(c, 5, g->environment);
    rlx__put_text(c, 4, g->token);
    rlx__put_text(c, 3, RLX_VERSION);
    rlx__put_text(c, 2, "relaax-c");
    rlx__put_integer(c, 1, 1);
    return c->at != NULL && (size_t)(c->out + c->out_size - c->at) <= RLX__HANDSHAKE - 4;
}

/* The bounds of observations are left out if the hello would be too long (section 6). */
static int rlx__hello(rlx_client *c) {
    int verdict;
    if (!rlx__put_hello(c, 1) && !rlx__put_hello(c, 0))
        return rlx__say(c, RLX__LIMIT, RLX_FAILED, "the hello is longer than 64 KiB: use one bound for all elements");
    verdict = rlx__send(c, RLX__HELLO);
    if (c->config.environment_parameters) c->limit += (size_t)c->config.environments * RLX__NUMBERS; /* of the welcome */
    return verdict == RLX_OK ? rlx__hear(c, RLX__WELCOME) : verdict;
}

/* Connect to the current address once. */
static int rlx__try(rlx_client *c) {
    char host[256];
    const char *from = c->config.addresses, *colon;
    size_t i, size;
    for (i = 0; i < c->address && strchr(from, ',') != NULL; i++) from = strchr(from, ',') + 1;
    if (i < c->address) c->address = 0, from = c->config.addresses;
    from += strspn(from, " "), size = strcspn(from, " ,");
    if (size >= sizeof host) return rlx__say(c, 0, RLX_FAILED, "an address is too long");
    memcpy(host, from, size), host[size] = 0;
    memcpy(c->where, host, size + 1);
    colon = strrchr(host, ':');
    if (colon == NULL || colon == host) return rlx__say(c, 0, RLX_FAILED, "the address '%s' is not HOST:PORT", host);
    host[colon - host] = 0;
    if (host[0] == '[' && colon[-1] == ']') host[colon - host - 1] = 0;
    c->connection = c->transport.open(c->transport.context, host + (host[0] == '['), colon + 1);
    if (c->connection == NULL) return rlx__say(c, 0, RLX_INTERRUPTED, "cannot connect to %s: is an RLX server running there?", c->where);
    c->state = RLX__WELCOME, c->silence = 60, c->answered = 0, c->limit = RLX__HANDSHAKE;
    return rlx__hello(c);
}

/* Wait before the next attempt, longer after each failure, or give up. */
static int rlx__back_off(rlx_client *c) {
    double wait = 0.5 * (double)(1 << (c->failures < 6 ? c->failures : 6)), chance, now = rlx__now();
    struct timespec t;
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    chance = (double)(c->random >> 11) / 9007199254740992.0;
    wait = (wait > 30 ? 30 : wait) * (0.5 + chance / 2);
    if (wait < c->retry_after * (1 + chance / 5)) wait = c->retry_after * (1 + chance / 5);
    if (c->failures++ == 0) c->since = now;
    if (now + wait - c->since > c->config.retry_seconds) return c->failures = 0, c->lost = 0, RLX_FAILED;
    c->retry_after = 0, c->lost = 0, c->address++;
    if (c->config.on_retry != NULL) c->config.on_retry(c->config.retry_context, c->reason, wait);
    else fprintf(stderr, "RLX: %s; trying again in %.1f s\n", c->reason, wait);
    t.tv_sec = (time_t)wait, t.tv_nsec = (long)((wait - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
    return RLX_OK;
}

int rlx_connect(rlx_client *c) {
    int verdict = RLX_OK;
    if (c->finished) return RLX_FINISHED;
    while (c->state == RLX__CLOSED) {
        if (c->lost && rlx__back_off(c) != RLX_OK) return RLX_FAILED;
        verdict = rlx__try(c);
        if (verdict == RLX_OK) c->state = RLX__IDLE;
        else rlx__hang_up(c, 0);
        if (verdict != RLX_OK && verdict != RLX_INTERRUPTED) return verdict;
    }
    return RLX_OK;
}

static int rlx__wrong(rlx_client *c, const char *what) { return rlx__say(c, RLX__VALUE, RLX_INVALID, "%s", what); }

static int rlx__leaves_fit(rlx_client *c, const rlx__value *v, const void *const *leaves, const uint8_t *rows) {
    int acts = v == &c->action;
    size_t i;
    for (i = 0; i < v->count; i++)
        if (!rlx__legal(&v->leaf[i], leaves[i], c->config.environments, rows, acts))
            return rlx__say(c, RLX__VALUE, RLX_INVALID, "leaf %zu of the %s is NaN, infinite or outside the space", i,
                            acts ? "action" : "observation"), 0;
    return 1;
}

static int rlx__ask(rlx_client *c, unsigned kind, uint32_t due) {
    int verdict = rlx__send(c, kind);
    if (verdict == RLX_OK) verdict = rlx__hear(c, due);
    if (verdict != RLX_OK) return verdict;
    c->answered = 1, c->failures = 0;
    c->state = due == RLX__RETURNS ? RLX__IDLE : RLX__STEP;
    return RLX_OK;
}

int rlx_init_idle(rlx_client *c, const void *const *observation, const uint8_t *partial, const uint8_t *idle) {
    uint32_t i, n = c->config.environments;
    int verdict;
    if (c->state == RLX__STEP) return rlx__wrong(c, "an episode is in progress: call rlx_reset first");
    for (i = 0; i < n; i++) {
        if (rlx__on(idle, i) && !c->config.out_of_step) return rlx__wrong(c, "an environment is idle: set out_of_step");
        c->rows[i] = !rlx__on(idle, i);
    }
    if (!rlx__leaves_fit(c, &c->observation, observation, c->rows)) return RLX_INVALID;
    do {
        if ((verdict = rlx_connect(c)) != RLX_OK) return verdict;
        if ((verdict = rlx__hear(c, 0)) == RLX_OK) {
            rlx__begin(c);
            rlx__put_mask(c, 3, idle);
            memset(c->rows, 1, n); /* all are partial if they did not begin with the parameters of this connection */
            rlx__put_mask(c, 2, c->parameters > 0 && !c->parameters_read ? c->rows : partial);
            rlx__put_leaves(c, 1, &c->observation, observation);
            verdict = rlx__ask(c, RLX__INIT, RLX__ACTIONS);
        }
    } while (verdict == RLX_INTERRUPTED);
    for (i = 0; i < n; i++) c->between[i] = (uint8_t)rlx__on(idle, i);
    return verdict;
}

int rlx_init(rlx_client *c, const void *const *observation, const uint8_t *partial) {
    return rlx_init_idle(c, observation, partial, NULL);
}

/* Check an outcome, and set c->cut (truncated and not terminated) and c->ended. */
static int rlx__outcome_fits(rlx_client *c, const rlx_outcome *o, int step, const uint8_t *idle, const uint8_t *chosen,
                             const void *const *action) {
    uint32_t i, n = c->config.environments, same_ended = 0, same_cut = 0;
    size_t k;
    for (i = 0; i < n; i++) {
        int habit = c->habit[i];
        int over = step && rlx__on(o->terminated, i), cut = rlx__on(o->truncated, i) && !over;
        if (rlx__infinite(RLX_FLOAT64, (const uint8_t *)&o->reward[i]) || !rlx__finite(o->reward[i], 1e15))
            return rlx__say(c, RLX__VALUE, RLX_INVALID, "the reward of environment %u must be from -1e15 to 1e15", i), 0;
        if (rlx__on(idle, i) && !c->config.out_of_step) return rlx__wrong(c, "an environment is idle: set out_of_step"), 0;
        if (!step && c->between[i]) cut = 0; /* it has no episode to end */
        c->cut[i] = (uint8_t)cut, c->ended[i] = (uint8_t)(over || cut);
        if (step && c->ended[i] && habit == RLX_DISABLED) return rlx__wrong(c, "with autoreset disabled, episodes end with rlx_reset"), 0;
        if (step && c->ended[i] && c->between[i]) return rlx__wrong(c, "an environment between two episodes has no episode to end"), 0;
        if (rlx__on(chosen, i) && (c->between[i] || (rlx__on(idle, i) && !c->ended[i])))
            return rlx__wrong(c, "an action was chosen for an environment that took none"), 0;
        same_ended |= c->ended[i] && habit == RLX_SAME_STEP, same_cut |= c->cut[i] && (habit == RLX_SAME_STEP || !step);
    }
    if (same_cut && o->final_observation == NULL) return rlx__wrong(c, "a truncated episode needs its final observation"), 0;
    if (step && o->final_observation != NULL && !same_ended) return rlx__wrong(c, "a final observation was given, but no episode ended"), 0;
    if (o->episode_count > (c->config.reports_episodes ? n : 0)) return rlx__wrong(c, "episodes without reports_episodes, or too many"), 0;
    for (k = 0; k < o->episode_count; k++)
        if (o->episodes[k].environment >= n || o->episodes[k].length < 1 || !rlx__finite(o->episodes[k].episode_return, 1e30))
            return rlx__wrong(c, "an episode with an invalid environment, length or return"), 0;
    if (rlx__any(c, chosen)) {
        if (!c->config.chosen_actions) return rlx__wrong(c, "an action was chosen: set chosen_actions"), 0;
        if (action == NULL) return rlx__wrong(c, "an action was chosen, and it is missing"), 0;
        if (!rlx__leaves_fit(c, &c->action, action, chosen)) return 0;
    }
    for (i = 0; i < n; i++) c->rows[i] = !step || (c->ended[i] && c->habit[i] == RLX_SAME_STEP);
    if (o->final_observation != NULL && !rlx__leaves_fit(c, &c->observation, o->final_observation, c->rows)) return 0;
    for (i = 0; i < n; i++) c->rows[i] = !rlx__on(idle, i) || (c->ended[i] && c->habit[i] == RLX_NEXT_STEP);
    return !step || rlx__leaves_fit(c, &c->observation, o->observation, c->rows);
}

int rlx_step_chosen(rlx_client *c, const rlx_outcome *o, const uint8_t *idle, const uint8_t *chosen,
                    const void *const *action) {
    uint32_t i, n = c->config.environments;
    int verdict;
    if (c->state == RLX__CLOSED) return c->finished ? RLX_FINISHED : RLX_INTERRUPTED;
    if (c->state != RLX__STEP) return rlx__wrong(c, "no episode is in progress: call rlx_init first");
    if (!rlx__outcome_fits(c, o, 1, idle, chosen, action)) return RLX_INVALID;
    if ((verdict = rlx__hear(c, 0)) != RLX_OK) return verdict;
    for (i = 0; i < n; i++) c->rows[i] = c->between[i] && !rlx__on(idle, i);
    rlx__begin(c);
    rlx__put_chosen(c, 9, chosen, action);
    rlx__put_mask(c, 8, idle);
    rlx__put_episodes(c, 7, o);
    rlx__put_mask(c, 6, c->rows);
    rlx__put_leaves(c, 5, &c->observation, o->final_observation);
    rlx__put_mask(c, 4, c->cut);
    rlx__put_mask(c, 3, o->terminated);
    rlx__put_leaves(c, 2, &c->observation, o->observation);
    rlx__put_bytes(c, 1, o->reward, 8 * (size_t)n);
    verdict = rlx__ask(c, RLX__STEPPED, RLX__ACTIONS);
    for (i = 0; verdict == RLX_OK && i < n; i++)
        c->between[i] = rlx__on(idle, i) ? c->between[i] || c->ended[i] : c->ended[i] && c->habit[i] == RLX_NEXT_STEP;
    return verdict;
}

int rlx_step_idle(rlx_client *c, const rlx_outcome *o, const uint8_t *idle) {
    return rlx_step_chosen(c, o, idle, NULL, NULL);
}

int rlx_step(rlx_client *c, const rlx_outcome *o) { return rlx_step_idle(c, o, NULL); }

int rlx_reset_chosen(rlx_client *c, const rlx_outcome *o, const uint8_t *chosen, const void *const *action) {
    int verdict;
    if (c->state == RLX__CLOSED) return c->finished ? RLX_FINISHED : RLX_INTERRUPTED;
    if (c->state != RLX__STEP) return rlx__wrong(c, "no episode is in progress: call rlx_init first");
    if (!rlx__outcome_fits(c, o, 0, NULL, chosen, action)) return RLX_INVALID;
    if ((verdict = rlx__hear(c, 0)) != RLX_OK) return verdict;
    rlx__begin(c);
    rlx__put_chosen(c, 5, chosen, action);
    rlx__put_episodes(c, 4, o);
    rlx__put_leaves(c, 3, &c->observation, o->final_observation);
    rlx__put_mask(c, 2, c->cut);
    rlx__put_bytes(c, 1, o->reward, 8 * (size_t)c->config.environments);
    return rlx__ask(c, RLX__RESET, RLX__RETURNS);
}

int rlx_reset(rlx_client *c, const rlx_outcome *o) { return rlx_reset_chosen(c, o, NULL, NULL); }

int rlx_parameters(rlx_client *c, const rlx_parameter **parameters, size_t *count) {
    int verdict;
    if (!c->config.environment_parameters) return rlx__wrong(c, "parameters are asked for: set environment_parameters");
    if ((verdict = rlx_connect(c)) != RLX_OK) return verdict;
    *parameters = c->parameter, *count = c->parameters, c->parameters_read = 1;
    return RLX_OK;
}

/* Convert the name of a metric as the server does. Returns its size, more than 128 if it does not fit. */
static size_t rlx__form(char form[128], const char *name) {
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./";
    size_t size = 0, i;
    for (i = 0; name[i] != 0 && size <= 128; i++) {
        if (size > 0 && ((uint8_t)name[i] & 0xc0) == 0x80) continue; /* the rest of a UTF-8 character */
        if (size < 128) form[size] = strchr(good, name[i]) && !(name[i] == '/' && size == 0) ? name[i] : '_';
        size++;
    }
    return size;
}

int rlx_metric(rlx_client *c, const char *name, double value) {
    char form[128];
    size_t size = rlx__form(form, name), i;
    uint64_t hash = 14695981039346656037u;
    uint32_t known;
    for (i = 0; i < size && i < sizeof form; i++) hash = (hash ^ (uint8_t)form[i]) * 1099511628211u;
    if (size == 0 || !rlx__finite(value, 1e30)) return rlx__wrong(c, "a metric needs a name and a value from -1e30 to 1e30");
    for (known = 0; known < c->name_count && c->names[known] != hash; known++) {}
    if ((c->state != RLX__IDLE && c->state != RLX__STEP) || known == c->name_limit || size > c->name_bytes || size > sizeof form)
        return 0;
    rlx__begin(c); /* a frame of its own */
    rlx__put(c, &value, 8);
    rlx__put_varint(c, 2 << 3 | 1);
    rlx__put_bytes(c, 1, form, size);
    rlx__put_part(c, 1, c->out + c->out_size);
    size = 4 + rlx__put_length(c, RLX__METRICS);
    if (size - 4 > c->limit || c->scalar_size + size > RLX__SCALARS) return 0;
    if (known == c->name_count) c->names[c->name_count++] = hash;
    memcpy(c->scalars + c->scalar_size, c->at, size);
    c->scalar_size += size;
    return 1;
}

int rlx_alive(rlx_client *c) {
    int verdict;
    if (c->state == RLX__CLOSED) return c->finished ? RLX_FINISHED : RLX_INTERRUPTED;
    rlx__begin(c);
    rlx__put_integer(c, 1, 1);
    if ((verdict = rlx__send(c, RLX__PING)) != RLX_OK) return verdict;
    return rlx__hear(c, RLX__PONG);
}

void rlx_close(rlx_client *c) {
    if (c == NULL) return;
    if (c->state != RLX__CLOSED) {
        c->broken = 1; /* the server's last message no longer matters */
        rlx__bye(c, NULL);
        rlx__hang_up(c, 1);
    }
    rlx__free(c);
}

const void *rlx_action(const rlx_client *c, size_t leaf) { return c->action_at[leaf]; }
const double *rlx_returns(const rlx_client *c) { return c->returns; }
const char *rlx_reason(const rlx_client *c) { return c->reason; }
int rlx_code(const rlx_client *c) { return c->code; }
const char *rlx_session(const rlx_client *c) { return c->session; }
const char *rlx_algorithm(const rlx_client *c) { return c->algorithm; }
uint64_t rlx_global_step(const rlx_client *c) { return c->global_step; }
#endif
