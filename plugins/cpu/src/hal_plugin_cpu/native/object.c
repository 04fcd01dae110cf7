/* Life of handles: `refs` keep the struct, `holds` keep the resource behind it. */
#include "runtime.h"

void hc_release_device(hc_device *dev) {
    if (atomic_fetch_sub(&dev->refs, 1) != 1) return;
    for (hc_slot *s = dev->slots, *next; s; s = next) {
        next = s->next;
        free(s->ranges);
        free(s);
    }
    pthread_mutex_destroy(&dev->lock);
    pthread_mutex_destroy(&dev->memory_lock);
    pthread_cond_destroy(&dev->idle);
    free(dev->held);
    free(dev->spans);
    free(dev);
}

void hc_object_init(hc_object *o, enum hc_type type, hc_device *dev) {
    atomic_init(&o->refs, 1);
    atomic_init(&o->holds, 1);
    atomic_init(&o->freed, 0);
    o->type = type;
    o->epoch = atomic_load(&dev->epoch);
    o->dev = dev;
    atomic_fetch_add(&dev->refs, 1);
    pthread_mutex_lock(&dev->memory_lock);
    o->next = dev->objects;
    if (o->next) o->next->link = &o->next;
    o->link = &dev->objects;
    dev->objects = o;
    pthread_mutex_unlock(&dev->memory_lock);
}

static void unlink_locked(hc_object *o) {
    if (!o->link) return;
    *o->link = o->next;
    if (o->next) o->next->link = o->link;
    o->link = NULL;
}

/* Ends the resource; the struct stays while anyone points at it. */
static void dispose(hc_object *o) {
    if (o->type == HC_BUFFER) hc_buffer_dispose((hc_buffer *)o);
    if (o->type == HC_GRAPH) hc_graph_dispose((hc_graph *)o);
}

static void destroy_launchable(hc_launchable *l) {
    for (int i = 0; i < l->nbuffers; i++) hc_unref(l->buffers[i]);
    hc_unref(l->program);
    free(l->args);
    free(l->buffers);
}

static void destroy(hc_object *o) {
    hc_device *dev = o->dev;
    pthread_mutex_lock(&dev->memory_lock);
    unlink_locked(o);
    pthread_mutex_unlock(&dev->memory_lock);
    if (o->type == HC_GRAPH) hc_graph_destroy((hc_graph *)o);
    if (o->type == HC_LAUNCHABLE) destroy_launchable((hc_launchable *)o);
    free(o);
    hc_release_device(dev);
}

static void release_hold(hc_object *o) {
    if (atomic_fetch_sub(&o->holds, 1) == 1) dispose(o);
}

void hc_ref(void *object) { atomic_fetch_add(&((hc_object *)object)->refs, 1); }

/* The last reference to a handle that nobody freed frees it: the safety net under a lost Python handle. In the child
 * of a fork it stays: the locks may be held for ever. */
void hc_unref(void *object) {
    hc_object *o = object;
    if (atomic_load(&o->dev->forked)) return;
    if (atomic_fetch_sub(&o->refs, 1) != 1) return;
    if (!atomic_exchange(&o->freed, 1)) release_hold(o);
    destroy(o);
}

int hc_check(hc_device *dev, void *object) {
    hc_object *o = object;
    if (o->dev != dev || o->epoch != atomic_load(&dev->epoch)) return HC_STALE;
    return atomic_load(&o->freed) ? HC_STALE : 0;
}

static int hold_unless_freed(hc_object *o) {
    int n = atomic_load(&o->holds);
    while (n > 0 && !atomic_load(&o->freed))
        if (atomic_compare_exchange_weak(&o->holds, &n, n + 1)) {
            hc_ref(o);
            return 0;
        }
    return HC_STALE;
}

/* A hold and a reference for an operation or graph; `hc_drop` gives both back. */
int hc_acquire(hc_device *dev, void *object) {
    int error = hc_check(dev, object);
    return error ? error : hold_unless_freed(object);
}

/* As `hc_acquire`, for a region that may belong to another CPU device of this process. */
int hc_acquire_region(hc_device *dev, hc_buffer *b) {
    hc_device *owner = b->object.dev;
    if (owner != dev && owner->index == dev->index) return HC_STALE;
    if (b->object.epoch != atomic_load(&owner->epoch)) return HC_STALE;
    return hold_unless_freed(&b->object);
}

void hc_drop(void *object) {
    release_hold(object);
    hc_unref(object);
}

int hc_free(hc_device *dev, void *object) {
    hc_object *o = object;
    if (atomic_load(&dev->forked)) return HC_FORKED;
    if (o->dev != dev || o->epoch != atomic_load(&dev->epoch)) return HC_STALE;
    if (atomic_exchange(&o->freed, 1)) return HC_STALE;
    if (o->type == HC_TIMELINE) hc_timeline_freed(dev, (hc_timeline *)o);
    release_hold(o);
    return 0;
}

static int ref_unless_dying(hc_object *o) {
    int n = atomic_load(&o->refs);
    while (n > 0)
        if (atomic_compare_exchange_weak(&o->refs, &n, n + 1)) return 1;
    return 0;
}

/* Takes an object off the device's list, with a reference; NULL when none is left. */
static hc_object *next_object(hc_device *dev) {
    hc_object *o = NULL;
    pthread_mutex_lock(&dev->memory_lock);
    while (!o && dev->objects) {
        o = dev->objects;
        unlink_locked(o);
        if (!ref_unless_dying(o)) o = NULL;
    }
    pthread_mutex_unlock(&dev->memory_lock);
    return o;
}

/* Frees every handle of the device whatever its owner thinks: for close and reset. */
void hc_free_objects(hc_device *dev) {
    hc_object *o;
    while ((o = next_object(dev))) {
        if (!atomic_exchange(&o->freed, 1)) release_hold(o);
        hc_unref(o);
    }
}

int hc_in_use(void *object) { return atomic_load(&((hc_object *)object)->holds) > 0; }
