// Hands the pieces of some work to the threads of an OpenMP runtime that runs already: that of torch.

#include <atomic>

namespace {

struct Work {
    std::atomic<long> next;
    std::atomic<unsigned> entered;
    long pieces;
    unsigned most;
    void (*one)(long);
};

// What every thread of the region runs; those beyond the most that may work at a time find nothing to do.
void drain(void* given) {
    Work& work = *static_cast<Work*>(given);
    if (work.entered.fetch_add(1) >= work.most) return;
    for (long piece = work.next.fetch_add(1); piece < work.pieces; piece = work.next.fetch_add(1)) work.one(piece);
}

}  // namespace

// `parallel` is the runtime's GOMP_parallel: it has `threads` threads call a function, the caller's one of them, and returns
// when all are done. `one` is called once for every number below `pieces`, by `most` threads at most.
extern "C" void dptrain_share(void (*parallel)(void (*)(void*), void*, unsigned, unsigned), unsigned threads, unsigned most,
                              long pieces, void (*one)(long)) {
    Work work{{0}, {0}, pieces, most, one};
    parallel(drain, &work, threads, 0);
}
