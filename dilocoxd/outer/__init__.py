"""outer"""
