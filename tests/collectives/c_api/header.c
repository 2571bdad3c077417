/* tarpon.h alone, as C99: nothing is missing, and every struct can grow by multiples of 8. */
#include "collectives/tarpon.h"

#define SIZED(type)                                                             \
  typedef char type##_begins_with_its_size[offsetof(type, size) == 0 ? 1 : -1]; \
  typedef char type##_has_whole_words[sizeof(type) % 8 == 0 ? 1 : -1]

SIZED(tarpon_options);
SIZED(tarpon_arguments);
SIZED(tarpon_summary);
SIZED(tarpon_loss);
SIZED(tarpon_step_verdict);

int main(void) {
  return tarpon_version() == NULL;
}
