/* The first failure of a run, as words for people. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "emu.h"

char fail_kind[32], fail_text[FAIL_NBYTES];
int fail_line;

bool failed(void) { return fail_kind[0] != 0; }

void fail_clear(void) {
    fail_kind[0] = fail_text[0] = 0;
    fail_line = 0;
}

size_t fail_who(const struct cpe *c, char *text, size_t size) {
    if (!c) return 0;
    int n = c->self.pen == MPE
                ? snprintf(text, size, "MPE, line %d: ", c->line)
                : snprintf(text, size, "CPE %d (row %d, column %d), line %d: ", c->self.pen, c->self.row,
                           c->self.col, c->line);
    return (size_t)n;
}

void fail(struct cpe *c, const char *kind, const char *format, ...) {
    if (!failed()) {
        snprintf(fail_kind, sizeof fail_kind, "%s", kind);
        size_t n = fail_who(c, fail_text, sizeof fail_text);
        va_list list;
        va_start(list, format);
        vsnprintf(fail_text + n, sizeof fail_text - n, format, list);
        va_end(list);
        fail_line = c ? c->line : 0;
    }
    if (running) cpe_yield();
}

static const char *awaited(const struct cpe *c) {
    static const char *const words[] = {"a reply", "a synchronisation", "the join", "a transfer"};
    return words[c->wait];
}

void fail_deadlock(void) {
    size_t n = (size_t)snprintf(fail_text, sizeof fail_text,
                                "deadlock: no CPE can go on, and no transfer is under way.");
    for (int i = 0; i < CONTEXTS; i++) {
        struct cpe *c = &cpes[i];
        if (c->state != WAITING || n + 200 > sizeof fail_text) continue;
        n += (size_t)snprintf(fail_text + n, sizeof fail_text - n, "\n  ");
        n += fail_who(c, fail_text + n, sizeof fail_text - n);
        n += (size_t)snprintf(fail_text + n, sizeof fail_text - n, "waits for %s", awaited(c));
        if (c->wait == FOR_REPLY && c->word)
            n += (size_t)snprintf(fail_text + n, sizeof fail_text - n, ": the word is %d, wanted %d",
                                  *c->word, c->value);
        if (!fail_line) fail_line = c->line;
    }
    snprintf(fail_kind, sizeof fail_kind, "deadlock");
}
