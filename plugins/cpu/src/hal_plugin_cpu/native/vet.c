/* A look at program text before LLVM reads it. LLVM reports most mistakes, but some make it end the process: huge types,
 * intrinsics that no processor has, inline assembly. Text of known words and small types is safe to compile here. A
 * word that is none of LLVM's is one more mistake for its parser to report; any other text is for a process of its own. */
#include "runtime.h"

#define MAX_LANES 64
#define MAX_ARRAY (4LL << 20)
#define MAX_STACK (32LL << 20)
#define MAX_DEPTH 16
#define MAX_COUNT 4096
#define MAX_ALIGNMENT 256
#define TABLE 1024

static const char *const WORDS[] = {
    "acq_rel", "acquire", "add", "afn", "align", "alloca", "and", "arcp", "ashr", "atomicrmw", "bfloat", "bitcast", "br",
    "call", "constant", "contract", "declare", "define", "double", "eq", "exact", "extractelement", "extractvalue",
    "fadd", "false", "fast", "fcmp", "fdiv", "fence", "float", "fmul", "fneg", "fpext", "fptosi", "fptoui", "fptrunc", "freeze",
    "frem", "fsub", "getelementptr", "global", "half", "icmp", "immarg", "inbounds", "insertelement", "insertvalue",
    "internal", "inttoptr", "label", "load", "lshr", "max", "min", "monotonic", "mul", "nnan", "ne", "ninf", "noalias",
    "nocapture", "noinline", "nounwind", "nsw", "nsz", "null", "nuw", "oeq", "oge", "ogt", "ole", "olt", "one", "or",
    "ord", "phi", "poison", "private", "ptr", "ptrtoint", "readnone", "readonly", "reassoc", "release", "ret", "sdiv",
    "select", "seq_cst", "sext", "sge", "sgt", "shl", "shufflevector", "sitofp", "sle", "slt", "splat", "srem", "store",
    "sub", "switch", "tail", "to", "true", "trunc", "udiv", "ueq", "uge", "ugt", "uitofp", "ule", "ult", "umax", "umin",
    "undef", "une", "unnamed_addr", "uno", "unreachable", "urem", "void", "volatile", "writeonly", "x", "xchg", "xor",
    "zeroinitializer", "zext",
};

static const char *const INTRINSICS[] = {
    "abs", "bitreverse", "bswap", "ceil", "copysign", "cos", "ctlz", "ctpop", "cttz", "exp", "exp2", "fabs", "floor",
    "fma", "fmuladd", "fptosi.sat", "fptoui.sat", "launder.invariant.group", "log", "log10", "log2", "masked.gather", "masked.load",
    "masked.store", "maximum",
    "maxnum", "memcpy", "memmove", "memset", "minimum", "minnum", "nearbyint", "pow", "powi", "prefetch", "rint", "round",
    "roundeven", "sin", "smax", "smin", "sqrt", "tanh", "trunc", "umax", "umin",
};

/* The instructions for products and for powers of two that the description names. LLVM ends the process for one that
 * the processor lacks, and for one of tile registers whose size is no number. */
typedef struct { const char *name; int feature, tiles; } unit;
static const unit UNITS[] = {
    {"llvm.x86.avx512bf16.dpbf16ps.512", HC_DOT_BF16, 0},
    {"llvm.x86.avx512.vpdpbusd.512", HC_DOT_I8, 0},
    {"llvm.x86.avx512.vpdpbusd.256", HC_DOT_I8_256, 0},
    {"llvm.x86.tdpbf16ps.internal", HC_TILE_BF16, 1},
    {"llvm.x86.tdpfp16ps.internal", HC_TILE_F16, 1},
    {"llvm.x86.tdpbssd.internal", HC_TILE_I8, 1},
    {"llvm.x86.tdpbusd.internal", HC_TILE_I8, 1},
    {"llvm.x86.tilezero.internal", HC_TILE_I8, 1},
    {"llvm.x86.tileloadd64.internal", HC_TILE_I8, 1},
    {"llvm.x86.tilestored64.internal", HC_TILE_I8, 1},
    {"llvm.x86.avx512.mask.scalef.ps.512", HC_SCALE, 0},
};
static const char TILES[] = "x86_amx";

/* What the parser understands and not all of LLVM can stand. */
static const char *const RISKY[] = {
    "addrspace", "alias", "asm", "attributes", "blockaddress", "byref", "byval", "c", "callbr", "catchpad", "catchret",
    "catchswitch", "cc", "cleanuppad", "cleanupret", "cmpxchg", "comdat", "distinct", "dso_local_equivalent", "elementtype",
    "fp128", "gc", "ifunc", "inalloca", "indirectbr", "invoke", "landingpad", "metadata", "module", "musttail",
    "no_cfi", "none", "opaque", "personality", "ppc_fp128", "preallocated", "prefix", "prologue", "ptrauth", "resume",
    "section", "sideeffect", "source_filename", "sret", "swifterror", "target", "token", "type", "uselistorder",
    "uselistorder_bb", "va_arg", "vscale", "x86_fp80", "x86_mmx",
};

/* The notes that a module may have: of stores past the caches. */
static const char *const NOTES[] = {"!nontemporal !0", "!0 = !{i32 1}"};

typedef struct { const char *word; int level; } entry;
static entry table[TABLE];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static unsigned hash(const char *word, int64_t n) {
    unsigned h = (unsigned)n;
    for (int64_t i = 0; i < n; i++) h = h * 31 + (unsigned char)word[i];
    return h;
}

static void enter(const char *const *words, size_t n, int level) {
    for (size_t i = 0; i < n; i++) {
        unsigned at = hash(words[i], (int64_t)strlen(words[i])) % TABLE;
        while (table[at].word) at = (at + 1) % TABLE;
        table[at] = (entry){words[i], level};
    }
}

static void fill_table(void) {
    enter(WORDS, sizeof WORDS / sizeof *WORDS, HC_VET_KNOWN);
    enter(RISKY, sizeof RISKY / sizeof *RISKY, HC_VET_RISKY);
}

static int level_of(const char *word, int64_t n) {
    for (unsigned at = hash(word, n) % TABLE; table[at].word; at = (at + 1) % TABLE)
        if (!strncmp(table[at].word, word, n) && !table[at].word[n]) return table[at].level;
    return HC_VET_STRANGE;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static int in_name(char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '$' || c == '-'; }

static int is_integer(const char *word, int64_t n) {
    int64_t digits = 1;
    while (digits < n && is_digit(word[digits])) digits++;
    return word[0] == 'i' && n > 1 && digits == n;
}

/* At most 64 bits. */
static int is_small_integer(const char *word, int64_t n) {
    return n == 2 || (n == 3 && (word[1] - '0') * 10 + word[2] - '0' <= 64);
}

/* "llvm.", a known name, and types. */
static int is_intrinsic(const char *name, int64_t n) {
    for (size_t i = 0; i < sizeof INTRINSICS / sizeof *INTRINSICS; i++) {
        int64_t length = (int64_t)strlen(INTRINSICS[i]);
        if (n > 5 + length && !strncmp(name + 5, INTRINSICS[i], length) && name[5 + length] == '.') return 1;
    }
    return 0;
}

static const unit *find_unit(const char *name, int64_t n) {
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++)
        if (n == (int64_t)strlen(UNITS[i].name) && !strncmp(name, UNITS[i].name, n)) return &UNITS[i];
    return NULL;
}

/* `in_tiles`: in a line that calls a function of tile registers; `size_next`: behind "i16" in such a line. */
typedef struct { const char *at, *end; char before; int depth, in_alloca, in_tiles, size_next; int64_t stack; } reader;

static void skip_comment(reader *r) {
    while (r->at < r->end && *r->at != '\n') r->at++;
}


/* A global or local name. */
static int read_name(reader *r) {
    const char *name = ++r->at;
    while (r->at < r->end && in_name(*r->at)) r->at++;
    int64_t n = r->at - name;
    if (name[-1] == '%' && r->size_next) return HC_VET_RISKY;
    const unit *found = find_unit(name, n);
    if (found) {
        r->in_tiles = found->tiles;
        return hc_has_unit(found->feature) ? HC_VET_KNOWN : HC_VET_RISKY;
    }
    if (n >= 5 && !strncmp(name, "llvm.", 5) && !is_intrinsic(name, n)) return HC_VET_RISKY;
    return n > 0 ? HC_VET_KNOWN : HC_VET_RISKY;
}

/* "(N)" behind "alignstack". LLVM ends the process for a large one. */
static int is_small_alignment(const reader *r) {
    const char *at = r->at;
    int64_t value = 0;
    if (at == r->end || *at++ != '(') return 0;
    for (; at < r->end && is_digit(*at) && value <= MAX_ALIGNMENT; at++) value = value * 10 + (*at - '0');
    return at < r->end && *at == ')' && value <= MAX_ALIGNMENT;
}

static int read_word(reader *r) {
    const char *word = r->at;
    while (r->at < r->end && in_name(*r->at)) r->at++;
    int64_t n = r->at - word;
    if (r->at < r->end && *r->at == ':') return HC_VET_KNOWN;
    if (n == 10 && !strncmp(word, "alignstack", 10)) return is_small_alignment(r) ? HC_VET_KNOWN : HC_VET_RISKY;
    if (n == 6 && !strncmp(word, "alloca", 6)) r->in_alloca = 1;
    r->size_next = r->in_tiles && n == 3 && !strncmp(word, "i16", 3);
    if (n == (int64_t)strlen(TILES) && !strncmp(word, TILES, n))
        return hc_has_unit(HC_TILE_I8) ? HC_VET_KNOWN : HC_VET_RISKY;
    if (is_integer(word, n)) return is_small_integer(word, n) ? HC_VET_KNOWN : HC_VET_RISKY;
    return level_of(word, n);
}

static void skip_blanks(const char **at, const char *end) {
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\n')) ++*at;
}

/* "[N x": an array. It is short enough and has elements of a plain type. */
static int is_small_array(reader *r, int64_t length) {
    const char *at = r->at;
    skip_blanks(&at, r->end);
    if (at == r->end || *at++ != 'x') return 1;
    skip_blanks(&at, r->end);
    if (r->in_alloca) r->stack += length;
    return length <= MAX_ARRAY && r->stack <= MAX_STACK && at < r->end && is_letter(*at);
}

/* The number is of an allowed size where it is the length of a type. */
static int is_small(reader *r, int64_t value) {
    if (r->before == '<') return value <= MAX_LANES;
    return r->before != '[' || is_small_array(r, value);
}

static int read_hexadecimal(reader *r) {
    const char *from = r->at;
    for (r->at += 2; r->at < r->end && in_name(*r->at); r->at++) ;
    return r->at - from <= 18 && from[2] != 'K' && from[2] != 'L' && from[2] != 'M' ? HC_VET_KNOWN : HC_VET_RISKY;
}

static int read_number(reader *r) {
    const char *from = r->at;
    int64_t value = 0;
    if (r->end - r->at > 2 && r->at[0] == '0' && r->at[1] == 'x') return read_hexadecimal(r);
    for (; r->at < r->end && is_digit(*r->at); r->at++)
        if (value <= MAX_ARRAY) value = value * 10 + (*r->at - '0');
    char c = r->at < r->end ? *r->at : 0;
    if (c == ':') return HC_VET_KNOWN;
    if (c == '.' || is_letter(c)) {
        while (r->at < r->end && (in_name(*r->at) || *r->at == '+')) r->at++;
        return HC_VET_KNOWN;
    }
    int small = r->in_alloca && r->before == ' ' ? value <= MAX_COUNT : is_small(r, value);
    return small && r->at - from <= 20 ? HC_VET_KNOWN : HC_VET_RISKY;
}

static int read_note(reader *r) {
    for (size_t i = 0; i < sizeof NOTES / sizeof *NOTES; i++) {
        int64_t n = (int64_t)strlen(NOTES[i]);
        int ends = r->end - r->at == n || (r->end - r->at > n && r->at[n] == '\n');
        if (ends && !strncmp(r->at, NOTES[i], n)) {
            r->at += n;
            return HC_VET_KNOWN;
        }
    }
    return HC_VET_RISKY;
}

static int read_sign(reader *r) {
    char c = *r->at++;
    switch (c) {
    case '<': case '[': case '(': case '{': return ++r->depth <= MAX_DEPTH ? HC_VET_KNOWN : HC_VET_RISKY;
    case '>': case ']': case ')': case '}': r->depth--; return HC_VET_KNOWN;
    case '\n': r->in_alloca = r->in_tiles = r->size_next = 0; return HC_VET_KNOWN;
    case ',': case '=': case '-': case ' ': case '\t': case '\r': case '*': case ':': return HC_VET_KNOWN;
    case '"': case '#': case '$': case '^': case '.': case '+': case '|': return HC_VET_RISKY;
    default: return HC_VET_STRANGE;
    }
}

/* Signs that say what a number after them is; within an alloca a number after a comma counts elements. */
static void remember(reader *r, char c) {
    if (c == '<' || c == '[') r->before = c;
    else if (c == ',' && r->in_alloca) r->before = ' ';
    else if (c != ' ' && c != '\t') r->before = 0;
}

/* The next piece's hc_vet. */
static int read_piece(reader *r) {
    char c = *r->at;
    if (c == '%' || c == '@') return read_name(r);
    if (is_letter(c)) return read_word(r);
    if (is_digit(c)) return read_number(r);
    if (c == '!') return read_note(r);
    if (c == ';') skip_comment(r);
    return c == ';' ? HC_VET_KNOWN : read_sign(r);
}

/* The least hc_vet of the text's pieces. */
int hc_vet(const char *text, int64_t nbytes) {
    reader r = {.at = text, .end = text + nbytes};
    int least = HC_VET_KNOWN;
    pthread_once(&once, fill_table);
    while (r.at < r.end && least > HC_VET_RISKY) {
        char c = *r.at;
        int level = read_piece(&r);
        if (level < least) least = level;
        if (!(r.before == ' ' && is_letter(c))) remember(&r, c);
    }
    return least;
}
