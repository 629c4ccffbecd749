#include "lockstep/parallel/comm/group/shared_choices.h"

#include <memory>

#include "lockstep/parallel/comm/store.h"

namespace lockstep {

std::function<std::string(const std::string& question, const std::function<std::string()>& own)> decided_together(
    Store& store, const std::string& name) {
    return [shared = std::shared_ptr<Store>(store.clone()), name](const std::string& question,
                                                                  const std::function<std::string()>& own) {
        const std::string key = name + "/choice/" + question;
        if (auto decided = shared->try_get(key)) return *std::move(decided);
        return shared->compare_set(key, "", own());
    };
}

}  // namespace lockstep
