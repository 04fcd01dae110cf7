/* Compiled programs. Their thread-local variables are the LDM: every access asks for its address. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu.h"

struct program {
    void *handle;
    char path[4096];
    size_t module;
    const char *image, *base;
    long image_nbytes, ldm_nbytes;
    struct span data;
};
struct program *current;

struct tls_index {
    unsigned long module, offset;
};

typedef void *address_fn(struct tls_index *index);

/* Takes the loader's place for the program that runs; a library of the worker's own that calls it, as a sanitizer's
 * does, gets the loader's. */
void *__tls_get_addr(struct tls_index *index) {
    static address_fn *loader;
    if (current && index->module == current->module) {
        if (!running) abort();
        return running->ldm + index->offset;
    }
    if (!loader) loader = (address_fn *)dlsym(RTLD_NEXT, "__tls_get_addr");
    if (!loader) abort();
    return loader(index);
}

static int look(struct dl_phdr_info *info, size_t size, void *object) {
    struct program *p = object;
    (void)size;
    if (strcmp(info->dlpi_name, p->path)) return 0;
    p->base = (const char *)info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        const char *at = (const char *)info->dlpi_addr + h->p_vaddr;
        if (h->p_type == PT_TLS) {
            p->module = info->dlpi_tls_modid;
            p->image = at;
            p->image_nbytes = (long)h->p_filesz;
            p->ldm_nbytes = (long)h->p_memsz;
        } else if (h->p_type == PT_LOAD) {
            if (!p->data.from) p->data.from = (char *)at;
            p->data.nbytes = at + h->p_memsz - p->data.from;
        }
    }
    return 1;
}

struct program *program_load(const char *path, char *why, size_t size) {
    struct program *p = calloc(1, sizeof *p);
    if (!p) abort();
    snprintf(p->path, sizeof p->path, "%s", path);
    p->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!p->handle) {
        snprintf(why, size, "%s", dlerror());
        free(p);
        return NULL;
    }
    dl_iterate_phdr(look, p);
    return p;
}

void program_unload(struct program *p) {
    if (current == p) current = NULL;
    dlclose(p->handle);
    free(p);
}

void *program_symbol(struct program *p, const char *name) { return dlsym(p->handle, name); }
long program_ldm(const struct program *p) { return p->ldm_nbytes; }
struct span program_span(const struct program *p) { return p->data; }

/* Variables with an initial value get it; the others are zero if asked, else what was there. */
void program_begin(struct program *p, bool zero) {
    current = p;
    ldm_begin(p->image, p->image_nbytes, p->ldm_nbytes, zero);
}

const char *program_place(const struct program *p, const void *pc, unsigned long *offset) {
    Dl_info info;
    *offset = (unsigned long)((const char *)pc - p->base);
    return dladdr(pc, &info) && info.dli_sname ? info.dli_sname : "?";
}
