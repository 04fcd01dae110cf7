/* A ring of the newest spans; under the device lock. */
#include "runtime.h"

void hc_add_span(hc_device *dev, const hc_item *item, int64_t end_ns, int lane) {
    if (item->op->detached) return;
    hc_span_record *r = &dev->spans[dev->nspans++ % HC_SPANS];
    r->timeline = item->op->timeline->id;
    r->value = item->op->value;
    r->span = (hc_span){item->start_ns, end_ns, item->name, lane, item->command};
}

/* Copies the spans of one point, newest first; gives their number. A timeline's values only grow along the ring, so
 * the search ends at the first older one. */
int hc_spans(hc_device *dev, hc_timeline *t, int64_t value, hc_span *out, int max) {
    int n = 0;
    pthread_mutex_lock(&dev->lock);
    uint64_t oldest = dev->nspans > HC_SPANS ? dev->nspans - HC_SPANS : 0;
    for (uint64_t i = dev->nspans; i > oldest; i--) {
        const hc_span_record *r = &dev->spans[(i - 1) % HC_SPANS];
        if (r->timeline != t->id || r->value > value) continue;
        if (r->value < value) break;
        if (n < max) out[n] = r->span;
        n++;
    }
    pthread_mutex_unlock(&dev->lock);
    return n;
}
