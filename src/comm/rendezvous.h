#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/socket.h"

namespace llmc {

/// The ranks in a star: rank 0 has a connection to each of the others, and they have one to it.
struct Star {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  /// Rank 0: by rank, its own not open. Others: rank 0's, alone.
  std::vector<Socket> peers = {};
};

/// Where rank 0 listens.
struct Meeting {
  std::vector<std::string> hosts;  ///< tried in this order
  int port = 0;
  /// What only this run's ranks know. Both sides prove it without sending it.
  std::string secret;
};

/// Rank 0: takes connections until all ranks have come. Who does not know the secret is sent away.
/// Ranks that are missing at the deadline, or that expect another number of ranks, end the start
/// for all with a comm error that names them.
Star host_ranks(Listener& listener, const std::string& secret, int size, Deadline deadline);

/// Another rank: tries until the deadline.
Star meet_at(const Meeting& meeting, int rank, int size, Deadline deadline);

/// Where the listener can be reached, with a new secret.
Meeting new_meeting(const Listener& listener);
/// The meeting as a few lines, with a check sum.
std::string meeting_text(const Meeting& meeting);
/// Nothing where the text is not whole.
std::optional<Meeting> parse_meeting(const std::string& text);

/// tcp: all know the meeting.
Star meet_by_tcp(const Meeting& meeting, int rank, int size, Deadline deadline);

/// file: rank 0 writes where it listens, and removes the file when all have come. The secret is
/// made anew for each start and stands in the file, so an old file leads nowhere: its reader tries
/// again, with what the file says then. One that is not whole counts as not there.
Star meet_by_file(const std::string& path, const std::string& token, int rank, int size,
                  Deadline deadline);

}  // namespace llmc
