/* Raw slabs: huge pages for large ones, memfd for shareable ones, exact accounting. */
#include "runtime.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE (2LL << 20)
#define PAGE 4096LL
#define GRANULARITY 64LL
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* an access to what was cut off would end the process */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Anonymous memory aligned to a huge page: map one more, cut the ends off. */
static unsigned char *map_huge(int64_t nbytes) {
    int64_t with_slack = nbytes + HUGE;
    unsigned char *raw = mmap(NULL, with_slack, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    unsigned char *data = (unsigned char *)round_up((int64_t)(intptr_t)raw, HUGE);
    if (data > raw) munmap(raw, data - raw);
    if (raw + with_slack > data + nbytes) munmap(data + nbytes, raw + with_slack - data - nbytes);
    madvise(data, nbytes, MADV_HUGEPAGE);
    return data;
}

static unsigned char *map_fd(int fd, int64_t nbytes) {
    void *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return data == MAP_FAILED ? NULL : data;
}

static int get_shared(hc_buffer *b) {
    b->mapped = round_up(b->nbytes ? b->nbytes : 1, PAGE);
    b->fd = memfd_create("hal-cpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->fd < 0) return HC_NO_MEMORY;
    int made = ftruncate(b->fd, b->mapped) == 0 && fcntl(b->fd, F_ADD_SEALS, SEALS) == 0;
    if (made && (b->data = map_fd(b->fd, b->mapped))) return 0;
    close(b->fd);
    b->fd = -1;
    return HC_NO_MEMORY;
}

static int get_memory(hc_buffer *b, int zero, int shareable) {
    if (shareable) return get_shared(b);
    if (b->nbytes >= HUGE) {
        b->mapped = round_up(b->nbytes, PAGE);
        b->data = map_huge(b->mapped);
        return b->data ? 0 : HC_NO_MEMORY;
    }
    void *data = NULL;
    int64_t nbytes = round_up(b->nbytes ? b->nbytes : 1, GRANULARITY);
    if (posix_memalign(&data, nbytes >= PAGE ? PAGE : GRANULARITY, nbytes)) return HC_NO_MEMORY;
    if (zero) memset(data, 0, nbytes);
    b->data = data;
    return 0;
}

static hc_buffer *new_buffer(hc_device *dev, int64_t nbytes, int label) {
    hc_buffer *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    hc_object_init(&b->object, HC_BUFFER, dev);
    b->nbytes = nbytes;
    b->label = label;
    b->fd = -1;
    return b;
}

static int room_for_label(hc_device *dev, int label) {
    if (label < dev->nlabels) return 1;
    int64_t *held = realloc(dev->held, (label + 1) * sizeof *held);
    if (!held) return 0;
    memset(held + dev->nlabels, 0, (label + 1 - dev->nlabels) * sizeof *held);
    dev->held = held;
    dev->nlabels = label + 1;
    return 1;
}

/* Counts the bytes before they are taken, so that two threads cannot both get the last ones. */
static int reserve(hc_device *dev, int64_t nbytes, int label, int64_t *epoch) {
    pthread_mutex_lock(&dev->memory_lock);
    *epoch = atomic_load(&dev->epoch);
    int ok = nbytes <= dev->capacity - dev->live && room_for_label(dev, label);
    if (ok) {
        dev->live += nbytes;
        dev->held[label] += nbytes;
        dev->allocations++;
        dev->nbuffers++;
        if (dev->live > dev->peak) dev->peak = dev->live;
    }
    pthread_mutex_unlock(&dev->memory_lock);
    return ok;
}

/* What a reset has taken off the account already is not counted twice. */
static void unreserve(hc_device *dev, int64_t nbytes, int label, int64_t epoch) {
    pthread_mutex_lock(&dev->memory_lock);
    if (epoch == atomic_load(&dev->epoch)) {
        dev->live -= nbytes;
        dev->held[label] -= nbytes;
        dev->nbuffers--;
    }
    pthread_mutex_unlock(&dev->memory_lock);
}

/* A reset: the account begins anew, though abandoned work may keep some memory for as long as it runs. */
int64_t hc_next_epoch(hc_device *dev) {
    pthread_mutex_lock(&dev->memory_lock);
    int64_t epoch = atomic_fetch_add(&dev->epoch, 1) + 1;
    dev->live = dev->nbuffers = 0;
    if (dev->held) memset(dev->held, 0, dev->nlabels * sizeof *dev->held);
    pthread_mutex_unlock(&dev->memory_lock);
    return epoch;
}

void hc_buffer_dispose(hc_buffer *b) {
    if (b->mapped > 0) munmap(b->data, b->mapped);
    if (b->mapped == 0) free(b->data);
    if (b->fd >= 0) close(b->fd);
    b->fd = -1;
    b->data = NULL;
    if (b->label >= 0) unreserve(b->object.dev, b->nbytes, b->label, b->reserved);
}

int hc_alloc(hc_device *dev, int64_t nbytes, int zero, int shareable, int label, hc_buffer **out) {
    int usable = hc_usable(dev);
    if (usable) return usable;
    int64_t epoch;
    if (!reserve(dev, nbytes, label, &epoch)) return HC_NO_MEMORY;
    hc_buffer *b = new_buffer(dev, nbytes, -1);
    if (!b || get_memory(b, zero, shareable)) {
        unreserve(dev, nbytes, label, epoch);
        if (b) {
            b->mapped = -1;
            hc_unref(b);
        }
        return HC_NO_MEMORY;
    }
    b->label = label;
    b->object.epoch = b->reserved = epoch; /* also where a reset came in between */
    *out = b;
    return 0;
}

int hc_import_host(hc_device *dev, void *data, int64_t nbytes, hc_buffer **out) {
    int usable = hc_usable(dev);
    hc_buffer *b = usable ? NULL : new_buffer(dev, nbytes, -1);
    if (!b) return usable ? usable : HC_NO_MEMORY;
    b->data = data;
    b->mapped = -1;
    *out = b;
    return 0;
}

/* Maps the memory behind `fd`, which stays the caller's. */
int hc_import_fd(hc_device *dev, int fd, int64_t nbytes, hc_buffer **out) {
    struct stat facts;
    int usable = hc_usable(dev);
    if (usable) return usable;
    if (fstat(fd, &facts) || facts.st_size < nbytes) return HC_INVALID;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) return HC_INVALID;
    int64_t mapped = round_up(nbytes ? nbytes : 1, PAGE);
    if (facts.st_size < mapped) return HC_INVALID;
    unsigned char *data = map_fd(fd, mapped);
    if (!data) return HC_NO_MEMORY;
    int error = hc_import_host(dev, data, nbytes, out);
    if (error) munmap(data, mapped);
    else (*out)->mapped = mapped;
    return error;
}

void *hc_data(hc_buffer *b) { return b->data; }
int hc_fd(hc_buffer *b) { return b->fd; }
int64_t hc_capacity(hc_device *dev) { return dev->capacity; }

int64_t hc_held(hc_device *dev, int label) {
    pthread_mutex_lock(&dev->memory_lock);
    int64_t n = label < dev->nlabels ? dev->held[label] : 0;
    pthread_mutex_unlock(&dev->memory_lock);
    return n;
}

void hc_count(hc_device *dev, hc_stats *out) {
    pthread_mutex_lock(&dev->memory_lock);
    *out = (hc_stats){dev->live, dev->peak, dev->allocations, dev->nbuffers};
    pthread_mutex_unlock(&dev->memory_lock);
}
