// A refusal by a store that does not change with time.
#pragma once

#include "lockstep/runtime/error.h"

namespace lockstep {

/// Another attempt at this port would fail as well: the store there belongs to another job, or its token is another
/// one, or it does not admit this user.
class NotAdmitted : public CommunicationError {
public:
    using CommunicationError::CommunicationError;
};

}  // namespace lockstep
