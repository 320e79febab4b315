/* A program that acts and loads, for tests/clients/test_policies_outside_python.py.
 *
 * policy act FILE HEAD...   reads from stdin `r` (reset), or `a` and an observation: the bytes of its leaves. Writes for each
 *                           observation a byte, 0: valid. If it is valid, the action and the outputs of the heads follow.
 * policy load               reads files, each after its size (uint32). Writes a line for each: "loaded", or the error.
 *                           A loaded policy acts three times. */
#define RLX_POLICY_IMPLEMENTATION
#include "../rlx_policy.h"

enum { LEAVES = 256 };

/* A buffer of exactly `size` bytes, so that sanitizers find reads beyond it. */
static void *reserved(size_t size) {
    void *memory = calloc(size + (size == 0), 1);
    if (memory == NULL) exit(3);
    return memory;
}

static size_t observation_of(const rlx_policy *policy, void *leaves[LEAVES]) {
    size_t count = 0, size;
    while ((size = rlx_policy_observation_size(policy, count)) > 0) leaves[count++] = reserved(size);
    return count;
}

static void *contents(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    void *bytes;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(3);
    *size = (size_t)ftell(file);
    bytes = reserved(*size);
    rewind(file);
    if (fread(bytes, 1, *size, file) != *size) exit(3);
    fclose(file);
    return bytes;
}

static int act(const char *path, char **heads) {
    char why[256];
    void *leaves[LEAVES];
    size_t size, count, i;
    int command;
    void *bytes = contents(path, &size);
    rlx_policy *policy = rlx_policy_load(bytes, size, why);
    free(bytes);
    if (policy == NULL) return fprintf(stderr, "%s\n", why), 2;
    count = observation_of(policy, leaves);
    while ((command = getchar()) != EOF) {
        char **head;
        int invalid;
        if (command == 'r') {
            rlx_policy_reset(policy);
            continue;
        }
        for (i = 0; i < count; i++) {
            size = rlx_policy_observation_size(policy, i);
            if (fread(leaves[i], 1, size, stdin) != size) return 3;
        }
        invalid = rlx_policy_act(policy, (const void *const *)leaves) != 0;
        putchar(invalid);
        if (invalid) fprintf(stderr, "%s\n", rlx_policy_reason(policy));
        for (i = 0; !invalid && (size = rlx_policy_action_size(policy, i)) > 0; i++)
            fwrite(rlx_policy_action(policy, i), 1, size, stdout);
        for (head = heads; !invalid && *head != NULL; head++) {
            const float *output = rlx_policy_output(policy, *head, &size);
            fwrite(output, sizeof *output, size, stdout);
        }
    }
    for (i = 0; i < count; i++) free(leaves[i]);
    rlx_policy_free(policy);
    return 0;
}

static int load(void) {
    uint32_t size;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char why[256];
        void *leaves[LEAVES];
        size_t count, i;
        void *bytes = reserved(size);
        rlx_policy *policy;
        if (fread(bytes, 1, size, stdin) != size) return 3;
        policy = rlx_policy_load(bytes, size, why);
        free(bytes);
        puts(policy == NULL ? why : "loaded");
        if (policy == NULL) continue;
        count = observation_of(policy, leaves);
        for (i = 0; i < 3; i++) {
            rlx_policy_act(policy, (const void *const *)leaves);
            if (i == 1) rlx_policy_reset(policy);
        }
        for (i = 0; i < count; i++) free(leaves[i]);
        rlx_policy_free(policy);
    }
    return 0;
}

int main(int count, char **words) {
    if (count > 2 && strcmp(words[1], "act") == 0) return act(words[2], words + 3);
    return count == 2 && strcmp(words[1], "load") == 0 ? load() : 3;
}
