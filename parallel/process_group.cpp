#include "lockstep/parallel/process_group.h"

#include <numeric>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

namespace {

std::string chosen_backend(const std::string& wanted, const ProcessPlace& place) {
    if (!wanted.empty()) return wanted;
    return place.local_world_size == place.world_size ? "shm" : "gloo";
}

}  // namespace

ProcessGroup::ProcessGroup(const ProcessGroupOptions& options)
    : rendezvous_(std::make_unique<Rendezvous>(options.rendezvous)) {
    Communicator::Place place;
    place.name = "world";
    place.rank = rank();
    place.size = size();
    place.store = store();
    place.timeout = options.timeout;
    place.master_addr = rendezvous_->place().master_addr;
    place.global_ranks.resize(static_cast<std::size_t>(size()));
    std::iota(place.global_ranks.begin(), place.global_ranks.end(), 0);
    communicator_ = std::make_shared<Communicator>(place, chosen_backend(options.backend, rendezvous_->place()));
}

ProcessGroup::~ProcessGroup() = default;

std::string_view ProcessGroup::backend() const { return communicator_->backend(); }

void ProcessGroup::barrier() { communicator_->barrier(); }

std::shared_ptr<Communicator> ProcessGroup::communicator(std::string_view purpose) const {
    return communicator_->duplicate(purpose);
}

}  // namespace lockstep
