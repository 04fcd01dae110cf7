/* How much memory this process may still take: the least of what the machine has and what its control groups allow.
 * Both tell what they could give by dropping what they only keep for speed. A part stays for everybody else. */
#include "engine.h"
#include <stdio.h>

enum { LINE_NBYTES = 4096, RESERVED_PART = 32 };

/* The number behind `word` in lines of "word number"; -1 without. */
static int64_t number_behind(const char *path, const char *word) {
    char line[LINE_NBYTES];
    long long found = -1;
    size_t n = strlen(word);
    FILE *file = fopen(path, "re");
    while (file && found < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, word, n) && sscanf(line + n, "%lld", &found) != 1) found = -1;
    if (file) fclose(file);
    return found;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* What is left of `limit`. */
static int64_t left_of(int64_t limit, int64_t used, int64_t dropped) {
    int64_t left = limit - limit / RESERVED_PART - used + dropped;
    return left > 0 ? left : 0;
}

static int64_t left_of_machine(const char *proc) {
    char path[LINE_NBYTES];
    snprintf(path, sizeof path, "%s/meminfo", proc);
    int64_t total = number_behind(path, "MemTotal:"), available = number_behind(path, "MemAvailable:");
    return total < 0 || available < 0 ? INT64_MAX : left_of(total << 10, (total - available) << 10, 0);
}

/* What the folder of a control group allows. `names` are the files of limit and use, and the word for what can be
 * dropped of it: of versions 2 and 1. */
static int64_t left_of_folder(const char *folder, const char *const *names) {
    char path[3][LINE_NBYTES + 64];
    for (int i = 0; i < 2; i++) snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
    snprintf(path[2], sizeof path[2], "%s/memory.stat", folder);
    int64_t limit = number_behind(path[0], ""), used = number_behind(path[1], ""), dropped = number_behind(path[2], names[2]);
    return limit < 0 || used < 0 ? INT64_MAX : left_of(limit, used, dropped < 0 ? 0 : dropped);
}

/* The group's folder and all around it. */
static int64_t left_of_group(const char *root, char *group, const char *const *names) {
    char folder[LINE_NBYTES];
    int64_t least = INT64_MAX;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        if ((size_t)snprintf(folder, sizeof folder, "%s%s", root, group) < sizeof folder)
            least = smaller(least, left_of_folder(folder, names));
    }
    return least;
}

static int64_t left_of_groups(const char *proc, const char *root) {
    static const char *const second[] = {"memory.max", "memory.current", "inactive_file"};
    static const char *const first[] = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
    char path[LINE_NBYTES], line[LINE_NBYTES], memory[LINE_NBYTES];
    int64_t least = INT64_MAX;
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    snprintf(memory, sizeof memory, "%s/memory", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        if (!controllers[1]) least = smaller(least, left_of_group(root, group, second));
        else if (strstr(controllers + 1, "memory")) least = smaller(least, left_of_group(memory, group, first));
    }
    if (file) fclose(file);
    return least;
}

int64_t he_memory_left_in(const char *proc, const char *cgroups) {
    return smaller(left_of_machine(proc), left_of_groups(proc, cgroups));
}

int64_t he_memory_left(void) { return he_memory_left_in("/proc", "/sys/fs/cgroup"); }
