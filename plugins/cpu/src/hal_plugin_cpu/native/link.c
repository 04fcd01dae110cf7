/* Object code made ready to run. LLVM writes one kind of object for programs on this processor: code and constants that
 * find each other from the table of offsets, without data that is written. Such an object needs no linker of LLVM's, and a
 * process that finds all its programs in a cache none of its library. Whatever else an object has is refused here. */
#include "runtime.h"
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>

#ifndef SHT_X86_64_UNWIND
#define SHT_X86_64_UNWIND 0x70000001
#endif
#define MAX_SECTIONS 64
#define MAX_ALIGNMENT 4096

typedef struct {
    const char *object;
    int64_t nbytes;
    int count, symbols;                  /* sections, and which of them is the table of symbols */
    Elf64_Shdr sections[MAX_SECTIONS];
    int64_t places[MAX_SECTIONS];        /* of each in memory, -1 for what is not there */
    char *base;
    int64_t table, slots;                /* where the table of offsets is, and how many of it are taken */
} image;

static int is_inside(uint64_t at, uint64_t size, uint64_t nbytes) { return size <= nbytes && at <= nbytes - size; }

static int read_at(const image *im, uint64_t at, void *out, uint64_t size) {
    if (!is_inside(at, size, (uint64_t)im->nbytes)) return 0;
    memcpy(out, im->object + at, size);
    return 1;
}

static int read_sections(image *im) {
    Elf64_Ehdr head;
    if (!read_at(im, 0, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG)) return 0;
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != ELFDATA2LSB) return 0;
    if (head.e_type != ET_REL || head.e_machine != EM_X86_64 || head.e_shentsize != sizeof(Elf64_Shdr)) return 0;
    if (head.e_shnum > MAX_SECTIONS) return 0;
    im->count = head.e_shnum;
    im->symbols = -1;
    for (int i = 0; i < im->count; i++) {
        Elf64_Shdr *s = &im->sections[i];
        if (!read_at(im, head.e_shoff + (uint64_t)i * sizeof *s, s, sizeof *s)) return 0;
        if (s->sh_type != SHT_NOBITS && !is_inside(s->sh_offset, s->sh_size, (uint64_t)im->nbytes)) return 0;
        if (s->sh_type == SHT_SYMTAB) im->symbols = i;
    }
    if (im->symbols < 0 || im->sections[im->symbols].sh_link >= (uint32_t)im->count) return 0;
    return im->sections[im->sections[im->symbols].sh_link].sh_type == SHT_STRTAB;
}

/* Bytes that the sections take in memory, -1 for sections that have no place here. */
static int64_t place_sections(image *im) {
    uint64_t end = 0;
    for (int i = 0; i < im->count; i++) {
        const Elf64_Shdr *s = &im->sections[i];
        im->places[i] = -1;
        /* Nobody unwinds a program: it calls nothing that throws. */
        if (!(s->sh_flags & SHF_ALLOC) || !s->sh_size || s->sh_type == SHT_X86_64_UNWIND) continue;
        uint64_t alignment = s->sh_addralign ? s->sh_addralign : 1;
        if (s->sh_flags & (SHF_WRITE | SHF_TLS) || s->sh_type != SHT_PROGBITS) return -1;
        if (alignment > MAX_ALIGNMENT || alignment & (alignment - 1)) return -1;
        end = (end + alignment - 1) & ~(alignment - 1);
        im->places[i] = (int64_t)end;
        end += s->sh_size;
    }
    return (int64_t)end;
}

static int read_symbol(const image *im, uint64_t index, Elf64_Sym *out, const char **name) {
    const Elf64_Shdr *table = &im->sections[im->symbols], *names = &im->sections[table->sh_link];
    if (index >= table->sh_size / sizeof *out) return 0;
    if (!read_at(im, table->sh_offset + index * sizeof *out, out, sizeof *out) || out->st_name >= names->sh_size) return 0;
    *name = im->object + names->sh_offset + out->st_name;
    return memchr(*name, 0, names->sh_size - out->st_name) != NULL;
}

static int address_of(const image *im, uint64_t index, uint64_t *out) {
    Elf64_Sym symbol;
    const char *name;
    if (!read_symbol(im, index, &symbol, &name)) return 0;
    if (symbol.st_shndx == SHN_UNDEF) {
        void *found = *name ? hc_symbol(name) : NULL;
        if (!found && *name) found = dlsym(RTLD_DEFAULT, name);
        *out = (uint64_t)(uintptr_t)found;
        return found != NULL;
    }
    if (symbol.st_shndx >= im->count || im->places[symbol.st_shndx] < 0) return 0;
    if (symbol.st_value > im->sections[symbol.st_shndx].sh_size) return 0;
    *out = (uint64_t)(uintptr_t)im->base + (uint64_t)im->places[symbol.st_shndx] + symbol.st_value;
    return 1;
}

/* The formulas are those of the processor's supplement to the System V ABI: S the symbol, A the addend, P the place, GOT
 * the table of offsets, G a place in it. */
static int relocate(image *im, const Elf64_Shdr *target, int64_t place, const Elf64_Rela *r) {
    uint64_t type = ELF64_R_TYPE(r->r_info), index = ELF64_R_SYM(r->r_info), S = 0, value;
    uint64_t width = type == R_X86_64_PC32 ? 4 : 8, A = (uint64_t)r->r_addend;
    if (!is_inside(r->r_offset, width, target->sh_size)) return 0;
    char *at = im->base + place + r->r_offset;
    uint64_t P = (uint64_t)(uintptr_t)at, GOT = (uint64_t)(uintptr_t)im->base + (uint64_t)im->table;
    if (type != R_X86_64_GOTPC64 && !address_of(im, index, &S)) return 0;
    switch (type) {
    case R_X86_64_64: value = S + A; break;
    case R_X86_64_PC64: value = S + A - P; break;
    case R_X86_64_GOTOFF64: value = S + A - GOT; break;
    case R_X86_64_GOTPC64: value = GOT + A - P; break;
    case R_X86_64_GOT64:
        memcpy(im->base + im->table + 8 * im->slots, &S, 8);
        value = 8 * (uint64_t)im->slots++ + A;
        break;
    case R_X86_64_PC32:
        value = S + A - P;
        if ((int64_t)value != (int32_t)value) return 0;
        break;
    default: return 0;
    }
    memcpy(at, &value, width); /* the low bytes come first */
    return 1;
}

/* Relocates all, or counts the slots that this takes where the image has no memory yet; -1 for what is not known. */
static int64_t walk_relocations(image *im) {
    int64_t slots = 0;
    for (int i = 0; i < im->count; i++) {
        const Elf64_Shdr *s = &im->sections[i];
        if (s->sh_type == SHT_REL) return -1;
        if (s->sh_type != SHT_RELA || s->sh_info >= (uint32_t)im->count || im->places[s->sh_info] < 0) continue;
        for (uint64_t k = 0; k < s->sh_size / sizeof(Elf64_Rela); k++) {
            Elf64_Rela r;
            if (!read_at(im, s->sh_offset + k * sizeof r, &r, sizeof r)) return -1;
            slots += ELF64_R_TYPE(r.r_info) == R_X86_64_GOT64;
            if (im->base && !relocate(im, &im->sections[s->sh_info], im->places[s->sh_info], &r)) return -1;
        }
    }
    return slots;
}

static void *find_entry(const image *im, const char *entry) {
    uint64_t count = im->sections[im->symbols].sh_size / sizeof(Elf64_Sym), found;
    for (uint64_t i = 0; i < count; i++) {
        Elf64_Sym symbol;
        const char *name;
        if (!read_symbol(im, i, &symbol, &name) || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
        if (symbol.st_shndx != SHN_UNDEF && !strcmp(name, entry) && address_of(im, i, &found)) return (void *)(uintptr_t)found;
    }
    return NULL;
}

int hc_link(const char *object, int64_t nbytes, const char *entry, hc_code *out) {
#ifdef __x86_64__
    image im = {.object = object, .nbytes = nbytes};
    if (!read_sections(&im)) return HC_INVALID;
    int64_t end = place_sections(&im), slots = end < 0 ? -1 : walk_relocations(&im);
    if (end <= 0 || slots < 0) return HC_INVALID;
    im.table = (end + 15) & ~(int64_t)15;
    int64_t whole = im.table + 8 * slots;
    void *memory = mmap(NULL, (size_t)whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return HC_NO_MEMORY;
    im.base = memory;
    for (int i = 0; i < im.count; i++)
        if (im.places[i] >= 0) memcpy(im.base + im.places[i], object + im.sections[i].sh_offset, im.sections[i].sh_size);
    void *address = walk_relocations(&im) < 0 ? NULL : find_entry(&im, entry);
    if (!address || mprotect(memory, (size_t)whole, PROT_READ | PROT_EXEC)) {
        munmap(memory, (size_t)whole);
        return HC_INVALID;
    }
    *out = (hc_code){memory, whole, address};
    return 0;
#else
    (void)object, (void)nbytes, (void)entry, (void)out;
    return HC_INVALID;
#endif
}

void hc_unlink(hc_code *code) { munmap(code->memory, (size_t)code->nbytes); }
