// Point-to-point communication: rank 0 sends a tensor to rank 1.
#include "lockstep/samples/apps/tutorial/programs.h"

namespace ls = lockstep;

namespace tutorial {

void blocking_messages(ls::ProcessGroup& group) {
    const ls::Tensor tensor = ls::Tensor::zeros({1});
    if (group.rank() == 0) {
        tensor.fill_(1);
        group.send(tensor, 1);
    } else if (group.rank() == 1) {
        group.recv(tensor, 0);
    }
    if (group.rank() < 2) say("Rank {} has data {:.1f}", group.rank(), tensor.item());
}

void non_blocking_messages(ls::ProcessGroup& group) {
    if (group.rank() > 1) return;
    const ls::Tensor tensor = ls::Tensor::zeros({1});
    if (group.rank() == 0) tensor.fill_(1);
    const ls::ProcessGroup::Work request = group.rank() == 0 ? group.isend(tensor, 1) : group.irecv(tensor, 0);
    say("Rank {} {}", group.rank(), group.rank() == 0 ? "started sending" : "started receiving");
    request.wait();  // until then the message uses the tensor
    say("Rank {} has data {:.1f}", group.rank(), tensor.item());
}

}  // namespace tutorial
