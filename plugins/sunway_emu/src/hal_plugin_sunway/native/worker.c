/* The process of one core group: takes orders on a socket, a line each, and answers with a line.
 *
 *   figure NAME VALUE           load PATH -> ok NUMBER LDM        unload NUMBER
 *   entry NUMBER NAME           trace PATH                        host HOST SLAVES
 *   run NUMBER NAME SLOTS...    a slot is sBITS (hexadecimal) or bOFFSET:NBYTES of the main memory
 *
 * Answers: "ok ...", or "fail KIND LINE NBYTES" and so many bytes of text. A CPE's exception and a hang
 * are answered so, too, with "last" for "fail", and end the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include "emu.h"

enum { MOST_PROGRAMS = 4096, MOST_SLOTS = 256, ORDER_NBYTES = 1 << 16 };

static int link_fd;
static char *arena;
static long arena_nbytes;
static struct program *programs[MOST_PROGRAMS];
static uint64_t slots[MOST_SLOTS + 3];
static struct span spans[MOST_SLOTS + 3 + 2]; /* of all slots, of the slots themselves, of the program */

static void say(const char *text, size_t size) {
    while (size) {
        ssize_t n = write(link_fd, text, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(1);
        text += n;
        size -= (size_t)n;
    }
}

static void answer_with(const char *word) {
    char head[128];
    int n = snprintf(head, sizeof head, "%s %s %d %zu\n", word, fail_kind, fail_line, strlen(fail_text));
    say(head, (size_t)n);
    say(fail_text, strlen(fail_text));
}

static void answer_failure(void) { answer_with("fail"); }

static void refuse(const char *text) {
    fail(NULL, "order", "%s", text);
    answer_failure();
    fail_clear();
}

/* Everything from here to `catch` runs in signal handlers, on a stack of its own. */
static void last_words(const char *kind, const char *what, const void *pc) {
    unsigned long offset = 0;
    const char *name = current && pc ? program_place(current, pc, &offset) : "?";
    struct cpe *c = running;
    snprintf(fail_kind, sizeof fail_kind, "%s", kind);
    if (c) {
        fail_line = c->line;
        size_t n = fail_who(c, fail_text, sizeof fail_text);
        snprintf(fail_text + n, sizeof fail_text - n, "%s in %s, at @%lx, after the last call of the runtime in "
                 "line %d", what, name, offset, fail_line);
    } else if (copying) {
        fail_line = copying->line;
        snprintf(fail_text, sizeof fail_text, "CPE %d, line %d: %s, which the DMA of %ld bytes in this line touches: "
                 "there is no such main memory", copying->cpe->self.pen, fail_line, what, copying->len);
    } else {
        snprintf(fail_text, sizeof fail_text, "%s in the emulator itself; report this as a bug", what);
    }
    answer_with("last");
    _exit(3);
}

static const void *counter_of(const void *context) {
#if defined(__x86_64__)
    return (const void *)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (const void *)((const ucontext_t *)context)->uc_mcontext.pc;
#else
    return (void)context, NULL;
#endif
}

static void on_exception(int number, siginfo_t *info, void *context) {
    char what[128];
    snprintf(what, sizeof what, "exception %s at address %p", strsignal(number), info->si_addr);
    last_words(number == SIGSEGV || number == SIGBUS ? "illegal-address" : "launch-fault", what,
               counter_of(context));
}

bool host_gone(void) {
    struct pollfd p = {link_fd, 0, 0};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR);
}

static void on_alarm(int number, siginfo_t *info, void *context) {
    static long seen_of[2] = {-1, -1};
    long *seen = &seen_of[number == SIGALRM];
    (void)info;
    if (running && *seen == switches)
        last_words("hang", running->transfers ? "no call of the runtime for too long (a loop on a reply word sees no "
                   "change: call athread_dma_wait_value)" : "no call of the runtime for too long", counter_of(context));
    *seen = switches;
}

static void catch(int number, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaction(number, &action, NULL);
}

static void faults_open(void) {
    static char stack[64 << 10];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) catch(numbers[i], on_exception);
    catch(SIGPROF, on_alarm);
    catch(SIGALRM, on_alarm);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN);
}

static void alarm_each(int timer, double seconds) {
    struct timeval t = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    setitimer(timer, &(struct itimerval){t, t}, NULL);
}

/* The handler calls it a hang when two alarms see the same call of the runtime. What counts is the time
 * that this process computes, since a busy host may leave it none; or much more time of any kind. */
static void watch(double seconds) {
    alarm_each(ITIMER_PROF, seconds / 2);
    alarm_each(ITIMER_REAL, seconds * 20);
}

static struct program *program_at(const char *number) {
    long i = number ? atol(number) : -1;
    return i >= 0 && i < MOST_PROGRAMS ? programs[i] : NULL;
}

static void load(char *path) {
    char why[4096], text[96];
    int i = 0;
    while (i < MOST_PROGRAMS && programs[i]) i++;
    if (i == MOST_PROGRAMS) return refuse("too many programs are loaded");
    programs[i] = program_load(path, why, sizeof why);
    if (!programs[i]) return refuse(why);
    snprintf(text, sizeof text, "ok %d %ld\n", i, program_ldm(programs[i]));
    say(text, strlen(text));
}

static void answer(bool well, const struct outcome *o) {
    char text[512];
    if (!trace_write()) fprintf(stderr, "the trace cannot be written\n");
    fflush(stdout);
    if (!well) return answer_failure();
    snprintf(text, sizeof text, "ok %.3f %.3f %.3f %.3f %.0f %.0f %.0f\n", o->cycles, o->busy, o->dma_wait,
             o->sync_wait, o->flops, o->get_nbytes, o->put_nbytes);
    say(text, strlen(text));
}

/* The slots and the memory that they name; the count of spans, or -1. */
static int take_slots(char **rest) {
    int n = 0, spanned = 0;
    for (char *word; (word = strtok_r(NULL, " ", rest)); n++) {
        if (n == MOST_SLOTS + 3) return -1;
        if (*word == 's') {
            slots[n] = strtoull(word + 1, NULL, 16);
            continue;
        }
        char *colon;
        long offset = strtol(word + 1, &colon, 10), nbytes = *colon ? atol(colon + 1) : 0;
        if (offset < 0 || nbytes < 0 || offset > arena_nbytes || nbytes > arena_nbytes - offset) return -1;
        slots[n] = (uint64_t)(uintptr_t)(arena + offset);
        if (nbytes) spans[spanned++] = (struct span){arena + offset, nbytes};
    }
    spans[spanned++] = (struct span){(char *)slots, (long)sizeof slots};
    return spanned;
}

static void run(char *rest) {
    struct program *p = program_at(strtok_r(NULL, " ", &rest));
    const char *name = strtok_r(NULL, " ", &rest), *seconds = strtok_r(NULL, " ", &rest);
    void *symbol = p && name ? program_symbol(p, name) : NULL;
    int count = symbol && seconds ? take_slots(&rest) : -1;
    if (count < 0) return refuse("run: no such program or entry, or bad slots");
    spans[count++] = program_span(p);
    dma_allow(spans, count);
    void (*entry)(void *);
    memcpy(&entry, &symbol, sizeof entry);
    struct outcome out;
    watch(atof(seconds));
    bool well = group_launch(p, entry, slots, &out);
    watch(0);
    answer(well, &out);
}

static void host(char *rest) {
    struct program *h = program_at(strtok_r(NULL, " ", &rest)), *s = program_at(strtok_r(NULL, " ", &rest));
    const char *seconds = strtok_r(NULL, " ", &rest);
    if (!h || !s || !seconds) return refuse("host: no such programs");
    dma_allow(NULL, 0);
    struct outcome out;
    watch(atof(seconds));
    bool well = group_host(h, s, &out);
    watch(0);
    answer(well, &out);
}

static void set_figure(char *rest) {
    const char *name = strtok_r(NULL, " ", &rest), *value = strtok_r(NULL, " ", &rest);
    if (name && value) figure_set(name, atof(value)); /* the other side's figures are not kept here */
}

static void obey(char *order) {
    char *rest = order, *word = strtok_r(order, " ", &rest);
    if (!word) return;
    if (!strcmp(word, "figure")) set_figure(rest);
    else if (!strcmp(word, "load")) load(rest);
    else if (!strcmp(word, "run")) run(rest);
    else if (!strcmp(word, "host")) host(rest);
    else if (!strcmp(word, "trace")) trace_open(rest);
    else if (!strcmp(word, "unload")) {
        long i = atol(rest);
        if (program_at(rest)) program_unload(programs[i]), programs[i] = NULL;
    } else if (!strcmp(word, "entry")) {
        struct program *p = program_at(strtok_r(NULL, " ", &rest));
        char *name = strtok_r(NULL, " ", &rest);
        if (p && name && program_symbol(p, name)) say("ok\n", 3);
        else refuse("no such entry");
    } else refuse("unknown order");
}

/* The next byte of the orders, or -1 when the process that gives them has ended. */
static int next_byte(void) {
    static char taken[4096];
    static ssize_t count, at;
    while (at == count) {
        struct pollfd p = {link_fd, POLLIN, 0};
        if (poll(&p, 1, 1000) <= 0) continue;
        count = recvfrom(link_fd, taken, sizeof taken, MSG_DONTWAIT, NULL, NULL);
        at = 0;
        if (count == 0) return -1;
        if (count < 0 && (count = 0, errno != EAGAIN && errno != EINTR)) return -1;
    }
    return (unsigned char)taken[at++];
}

static bool take_order(char *order) {
    for (size_t n = 0; n + 1 < ORDER_NBYTES; n++) {
        int byte = next_byte();
        if (byte < 0) return false;
        order[n] = (char)byte;
        if (byte == '\n') return order[n] = 0, true;
    }
    return false;
}

/* Where the host puts the memory of a host program decides what shares a row: let it be the same place
 * each time. A host that does not allow this still computes the same, in times a little apart. */
static void settle_addresses(char **words) {
    int now = personality(0xffffffff);
    if (now == -1 || now & ADDR_NO_RANDOMIZE || personality((unsigned long)now | ADDR_NO_RANDOMIZE) == -1) return;
    execv("/proc/self/exe", words);
}

int main(int count, char **words) {
    static char order[ORDER_NBYTES];
    if (count != 4) return fprintf(stderr, "usage: worker SOCKET MEMORY NBYTES\n"), 2;
    settle_addresses(words);
    signal(SIGXFSZ, SIG_IGN);  /* a file that the limit for files cuts off is an error of its writer */
    link_fd = atoi(words[1]);
    arena_nbytes = atol(words[3]);
    arena = mmap(NULL, (size_t)arena_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, atoi(words[2]), 0);
    if (arena == MAP_FAILED) return perror("mapping the main memory"), 2;
    memory_arena(arena, arena_nbytes);
    faults_open();
    cpes_open();
    while (take_order(order)) obey(order);
    return 0;
}
