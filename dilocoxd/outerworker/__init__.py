"""outerworker"""
