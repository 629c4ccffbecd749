// Activation checkpointing under DDP: ranks have the bits of one process without it.
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpointed_nets.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("checkpointed parts have the bits of one process on 2 ranks") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const auto check = [&]<class Net>(std::type_identity<Net>, const char* name) {
                  DistributedDataParallel<Net> model(seeded_checkpointed_net<Net>(Checkpoints::parts), group,
                                                     {.shards = 3});
                  DataParallel<Net> alone(seeded_checkpointed_net<Net>(Checkpoints::nothing), Devices({Device::cpu(0)}),
                                          {.shards = 3});
                  expect(after_checkpointed_steps(model) == after_checkpointed_steps(alone),
                         std::string(name) + " is not bit-identical to one process");
              };
              check(std::type_identity<CheckpointedMlp>(), "the network with dropout");
              check(std::type_identity<CheckpointedConvolutions>(), "the network with batch normalisation");
              check(std::type_identity<CheckpointedTransformer>(), "the transformer");
          }) == "");
}
