# Writes what the tool says of itself into DIR: man1/ and tarpon (the completion for bash). Run as
# cmake -D TOOL=... -D DIR=... -P.
file(REMOVE_RECURSE ${DIR})
file(MAKE_DIRECTORY ${DIR}/man1)
execute_process(COMMAND ${TOOL} help --man-pages ${DIR}/man1 COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${TOOL} completion bash OUTPUT_FILE ${DIR}/tarpon COMMAND_ERROR_IS_FATAL ANY)
