/* The timeline of a run as a Chrome trace, which Perfetto opens: a track for each CPE, emulated time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu.h"

struct row {
    int pen, line;
    char name[28];
    double from, to;
};
static struct row *rows;
static size_t count, room;
static char path[4096];

void trace_open(const char *where) { snprintf(path, sizeof path, "%s", where); }

void trace_span(const struct cpe *c, const char *name, double from, double to, int line) {
    if (!path[0] || to <= from) return;
    if (count == room) {
        room = room ? 2 * room : 4096;
        rows = realloc(rows, room * sizeof *rows);
        if (!rows) abort();
    }
    struct row r = {c->self.pen, line, "", from, to};
    snprintf(r.name, sizeof r.name, "%s", name);
    rows[count++] = r;
}

static void put_name(FILE *out, const char *name) {
    for (; *name; name++) {
        if (*name == '"' || *name == '\\') fputc('\\', out);
        fputc((unsigned char)*name < ' ' ? ' ' : *name, out);
    }
}

static void put_row(FILE *out, const struct row *r) {
    double us = 1e6 / chip.cpe_hz;
    fprintf(out, ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.9f,\"dur\":%.9f,\"name\":\"", r->pen, r->from * us,
            (r->to - r->from) * us);
    put_name(out, r->name);
    fprintf(out, "\",\"args\":{\"line\":%d,\"cycles\":%.1f}}", r->line, r->to - r->from);
}

/* Write what was gathered since `trace_open`, and forget it. False: the file cannot be written. */
bool trace_write(void) {
    if (!path[0]) return true;
    FILE *out = fopen(path, "w");
    path[0] = 0;
    if (!out) return count = 0, false;
    fprintf(out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\","
                 "\"args\":{\"name\":\"core group (emulated time)\"}}");
    for (int i = 0; i < CONTEXTS; i++)
        fprintf(out, ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s %d\"}}", i,
                i == MPE ? "MPE" : "CPE", i == MPE ? 0 : i);
    for (size_t i = 0; i < count; i++) put_row(out, &rows[i]);
    fprintf(out, "\n]}\n");
    count = 0;
    return !fclose(out);
}
