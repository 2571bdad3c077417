# Writes OUTPUT from INPUT (version.h.in) with the commit of SOURCE_DIR, "-dirty" behind it when files
# differ from it; only when that changes something. Run as cmake -D NAME=VALUE... -P.
execute_process(
  COMMAND git --no-optional-locks describe --always --dirty --abbrev=12 --exclude=*
  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE TARPON_GIT_COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT TARPON_GIT_COMMIT)
  set(TARPON_GIT_COMMIT unknown)
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
