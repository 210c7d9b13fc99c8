/* SPDX-License-Identifier: Apache-2.0
 *
 * The table is only written under its mutex, but for counters; readers take no lock.
 */
#include "prices.h"

#include <pthread.h>
#include <string.h>

#define NS_PER_MS    1e6F
#define AGREEMENT    1.25F
#define RISE_AGREED  0.05F
#define RISE_DOUBTED 0.001F
#define NS_PER_S     1000000000ULL
#define SLACK        1.1F   /* of a correction that moves about */
#define HALF_OF_ALL  5      /* that a price can be corrected by */
#define DRIFT_PER_S  0.003F /* corrected prices: over the agent's seconds much less than it evens out */

enum { NEVER_SOUND = AQ_PRICE_SAMPLES + 1 };

struct aq_price aq_prices[AQ_PRICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool used; /* spares a fork the pages that nobody touched */

/* One that is being measured is kept if another can go. */
static bool goes_before(const struct aq_price *a, const struct aq_price *b) {
  if (!a->key || !b->key)
    return !a->key && b->key;
  if (!a->pending != !b->pending)
    return !a->pending;
  return a->launches < b->launches;
}

struct aq_price *aq_price_add(uint64_t key) {
  struct aq_price *set = aq_price_set(key);
  struct aq_price *chosen = &set[0];
  pthread_mutex_lock(&lock);
  used = true;
  for (unsigned way = 0; way < AQ_PRICE_WAYS; way++) {
    if (set[way].key == key) {
      pthread_mutex_unlock(&lock);
      return &set[way];
    }
    if (goes_before(&set[way], chosen))
      chosen = &set[way];
  }
  __atomic_store_n(&chosen->key, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&chosen->cost_ns, AQ_GUARD_NS, __ATOMIC_RELAXED);
  __atomic_store_n(&chosen->known, false, __ATOMIC_RELAXED);
  __atomic_store_n(&chosen->launches, 0, __ATOMIC_RELAXED);
  chosen->unsettled = 0;
  chosen->paid_ns = 0;
  __atomic_store_n(&chosen->pending, 0, __ATOMIC_RELAXED);
  chosen->count = chosen->next = 0;
  __atomic_store_n(&chosen->key, key, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return chosen;
}

uint64_t aq_price_estimate(const float *sample_ms, unsigned count) {
  float sorted[AQ_PRICE_SAMPLES] = {sample_ms[0]};
  for (unsigned i = 1; i < count; i++) {
    unsigned place = i;
    for (; place > 0 && sorted[place - 1] > sample_ms[i]; place--)
      sorted[place] = sorted[place - 1];
    sorted[place] = sample_ms[i];
  }
  float floor = sorted[count / 2] / 4;
  float ns = (sorted[0] > floor ? sorted[0] : floor) * NS_PER_MS;
  return ns > (float)AQ_PRICE_LEAST_NS ? (uint64_t)ns : AQ_PRICE_LEAST_NS;
}

float aq_price_lowest(float lowest_ms, float ms, const float *sample_ms, unsigned count) {
  float least = sample_ms[0];
  float most = sample_ms[0];
  for (unsigned i = 1; i < count; i++) {
    least = sample_ms[i] < least ? sample_ms[i] : least;
    most = sample_ms[i] > most ? sample_ms[i] : most;
  }
  float risen_ms = lowest_ms * (1 + (most <= least * AGREEMENT ? RISE_AGREED : RISE_DOUBTED));
  return lowest_ms > 0 && risen_ms < ms ? risen_ms : ms;
}

uint64_t aq_price_moved(uint64_t cost_ns, uint64_t wanted_ns, float correction, uint64_t passed_ns) {
  if (correction == 1 || (wanted_ns > cost_ns && correction > HALF_OF_ALL))
    return wanted_ns;
  float cost = (float)cost_ns;
  float wanted = (float)wanted_ns;
  float drift = cost * DRIFT_PER_S * (passed_ns < NS_PER_S ? (float)passed_ns / (float)NS_PER_S : 1);
  if (wanted > cost)
    return wanted > cost + drift ? (uint64_t)(cost + drift) : wanted_ns;
  float most = correction < SLACK ? SLACK * wanted / correction : wanted;
  float moved = most < cost - drift ? most : cost - drift;
  return moved > wanted ? (uint64_t)moved : wanted_ns;
}

/* Under the lock: false: there are better ones. `*first`: it is the first that is worth something. */
static bool counts(struct aq_price *price, const struct aq_sample *sample, bool *first) {
  bool sound = sample->sound_ms > 0;
  if (!price->known)
    price->unsound = NEVER_SOUND;
  *first = !price->known || (sound && price->unsound == NEVER_SOUND);
  if (*first) {
    price->count = price->next = 0;
    price->lowest_ms = 0;
  }
  if (sound)
    price->unsound = 0;
  else if (price->unsound < AQ_PRICE_SAMPLES && ++price->unsound == AQ_PRICE_SAMPLES)
    price->lowest_ms = 0;
  return sound || price->unsound >= AQ_PRICE_SAMPLES;
}

/* Under the lock: what it costs with a new sample. */
static uint64_t estimated(struct aq_price *price, const struct aq_sample *sample) {
  bool first;
  if (!counts(price, sample, &first))
    return price->cost_ns;
  price->sample_ms[price->next] = sample->ms;
  price->next = (price->next + 1) % AQ_PRICE_SAMPLES;
  price->count += price->count < AQ_PRICE_SAMPLES;
  uint64_t cost = aq_price_estimate(price->sample_ms, price->count);
  if (sample->sound_ms > 0)
    price->lowest_ms = aq_price_lowest(price->lowest_ms, sample->sound_ms, price->sample_ms, price->count);
  uint64_t lowest = (uint64_t)(price->lowest_ms * NS_PER_MS);
  cost = lowest > 0 && lowest < cost ? lowest : cost;
  if (!first)
    cost = aq_price_moved(price->cost_ns, cost, sample->correction, sample->at_ns - price->moved_ns);
  if (cost != price->cost_ns)
    price->moved_ns = sample->at_ns;
  return cost;
}

void aq_price_learn(struct aq_price *price, uint64_t key, const struct aq_sample *sample, int64_t *owed_ns) {
  *owed_ns = 0;
  if (!(sample->ms >= 0) || sample->ms > 1e7F) /* no time */
    return;
  pthread_mutex_lock(&lock);
  if (price->key == key) {
    uint64_t cost = estimated(price, sample);
    __atomic_store_n(&price->cost_ns, cost, __ATOMIC_RELAXED);
    if (!price->known) {
      *owed_ns = (int64_t)price->unsettled * (int64_t)cost - (int64_t)price->paid_ns;
      price->unsettled = 0;
      price->paid_ns = 0;
    }
    __atomic_store_n(&price->known, true, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&lock);
}

void aq_price_guessed(struct aq_price *price, uint64_t cost_ns, int change) {
  pthread_mutex_lock(&lock);
  if (change > 0 || (price->unsettled > 0 && price->paid_ns >= cost_ns)) {
    price->unsettled += (uint32_t)change;
    price->paid_ns += change > 0 ? cost_ns : -cost_ns;
  }
  pthread_mutex_unlock(&lock);
}

void aq_price_raise(struct aq_price *price, uint64_t key, uint64_t ns) {
  pthread_mutex_lock(&lock);
  if (price->key == key && !price->known && price->cost_ns < ns)
    __atomic_store_n(&price->cost_ns, ns, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

void aq_price_pending(struct aq_price *price, uint64_t key, int change) {
  pthread_mutex_lock(&lock);
  if (price->key == key && (change > 0 || price->pending > 0))
    __atomic_store_n(&price->pending, price->pending + (uint32_t)change, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

/* The next launch is measured. */
static void doubt(struct aq_price *price) {
  __atomic_store_n(&price->known, false, __ATOMIC_RELAXED);
  price->unsettled = 0;
  price->paid_ns = 0;
  __atomic_store_n(&price->launches, 0, __ATOMIC_RELAXED);
}

void aq_price_doubt(uint64_t key) {
  struct aq_price *set = aq_price_set(key);
  pthread_mutex_lock(&lock);
  for (unsigned way = 0; way < AQ_PRICE_WAYS; way++)
    if (set[way].key == key)
      doubt(&set[way]);
  pthread_mutex_unlock(&lock);
}

void aq_prices_doubt(void) {
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; used && i < AQ_PRICES; i++)
    if (aq_prices[i].key)
      doubt(&aq_prices[i]);
  pthread_mutex_unlock(&lock);
}

void aq_prices_reset(void) {
  if (used)
    memset(aq_prices, 0, sizeof(aq_prices));
  used = false;
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
